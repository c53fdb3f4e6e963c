-- The registry of protected endpoints. The functions check, warn, and write with the rights of the tables' owner
-- (src/registry.rs).

CREATE FUNCTION @extschema@.idem_protect(
  endpoint text,
  effect text DEFAULT 'transaction',
  retry_window interval DEFAULT NULL,
  ttl interval DEFAULT NULL,
  stuck_after interval DEFAULT NULL,
  key_required boolean DEFAULT true,
  max_body_bytes integer DEFAULT NULL,
  expected_writes_per_day bigint DEFAULT NULL,
  guesses text[] DEFAULT NULL,
  notes text DEFAULT NULL)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_protect';

COMMENT ON FUNCTION @extschema@.idem_protect(
  text, text, interval, interval, interval, boolean, integer, bigint, text[], text) IS
  'Registers an endpoint, or replaces its registration: what is left out takes its default. Raises 22023; warns of a ttl over 7 days and of PUT and DELETE. Leaves a line in the log.';

CREATE FUNCTION @extschema@.idem_unprotect(endpoint text, force boolean DEFAULT false)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_unprotect';

COMMENT ON FUNCTION @extschema@.idem_unprotect(text, boolean) IS
  'Removes an endpoint''s registration; true if there was one. Refused (55006) while it has keys in progress or unexpired, unless forced. Stored keys stay; new claims are refused (ID006). Leaves a line in the log.';
