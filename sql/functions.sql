-- The functions for applications, and those for operators that touch stored keys. They switch to the tables' owner inside (src/pg/rights.rs), so a
-- caller needs EXECUTE and nothing else. None is STRICT: a NULL argument is answered, not swallowed.

CREATE FUNCTION @extschema@.idem_claim(
  tenant_id text, endpoint text, key text, request_body bytea,
  request_target text DEFAULT NULL, request_hash bytea DEFAULT NULL, wait interval DEFAULT '0',
  ttl interval DEFAULT NULL,
  OUT outcome text, OUT response_code integer, OUT response_headers jsonb, OUT response_body bytea,
  OUT resource_ref text, OUT attempt integer, OUT provider_key uuid, OUT expires_at timestamptz)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_bytea';

CREATE FUNCTION @extschema@.idem_claim(
  tenant_id text, endpoint text, key text, request_body text,
  request_target text DEFAULT NULL, request_hash bytea DEFAULT NULL, wait interval DEFAULT '0',
  ttl interval DEFAULT NULL,
  OUT outcome text, OUT response_code integer, OUT response_headers jsonb, OUT response_body bytea,
  OUT resource_ref text, OUT attempt integer, OUT provider_key uuid, OUT expires_at timestamptz)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_claim_text';

CREATE FUNCTION @extschema@.idem_complete(
  tenant_id text, endpoint text, key text, response_code integer, response_body bytea,
  response_headers jsonb DEFAULT NULL, resource_ref text DEFAULT NULL, attempt integer DEFAULT NULL)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_complete_bytea';

CREATE FUNCTION @extschema@.idem_complete(
  tenant_id text, endpoint text, key text, response_code integer, response_body text,
  response_headers jsonb DEFAULT NULL, resource_ref text DEFAULT NULL, attempt integer DEFAULT NULL)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_complete_text';

CREATE FUNCTION @extschema@.idem_fail(
  tenant_id text, endpoint text, key text, response_code integer, response_body bytea,
  response_headers jsonb DEFAULT NULL, resource_ref text DEFAULT NULL, attempt integer DEFAULT NULL)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_fail_bytea';

CREATE FUNCTION @extschema@.idem_fail(
  tenant_id text, endpoint text, key text, response_code integer, response_body text,
  response_headers jsonb DEFAULT NULL, resource_ref text DEFAULT NULL, attempt integer DEFAULT NULL)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_fail_text';

CREATE FUNCTION @extschema@.idem_release(
  tenant_id text, endpoint text, key text, attempt integer DEFAULT NULL)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_release';

CREATE FUNCTION @extschema@.idem_checkpoint(
  tenant_id text, endpoint text, key text, recovery_point text, recovery_state jsonb DEFAULT NULL,
  attempt integer DEFAULT NULL)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_checkpoint';

CREATE FUNCTION @extschema@.idem_forget(tenant_id text, endpoint text, key text)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_forget';

CREATE FUNCTION @extschema@.idem_erase(tenant_id text, endpoint text DEFAULT NULL, key text DEFAULT NULL)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_erase';

CREATE FUNCTION @extschema@.idem_sweep(max_rows integer DEFAULT 10000)
RETURNS integer
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_sweep';

COMMENT ON FUNCTION @extschema@.idem_claim(text, text, text, bytea, text, bytea, interval, interval) IS
  'Decides whether this request runs: outcome execute (run the work, then idem_complete or idem_fail), replay, in_progress, key_reused, key_missing, key_invalid (send code, headers, body) or unprotected. request_target tells requests with the same body apart, and is required where the endpoint is a template. Raises 22023, 25006, 40001, ID006.';
COMMENT ON FUNCTION @extschema@.idem_claim(text, text, text, text, text, bytea, interval, interval) IS
  'As idem_claim with a bytea body; the text is hashed as its UTF-8 bytes.';
COMMENT ON FUNCTION @extschema@.idem_complete(text, text, text, integer, bytea, jsonb, text, integer) IS
  'Stores the successful response of a claim, to be replayed: true. The same result again is a no-op: false. No attempt means that of this transaction''s own claim, else 1. Raises ID001, ID002, ID003, ID005.';
COMMENT ON FUNCTION @extschema@.idem_complete(text, text, text, integer, text, jsonb, text, integer) IS
  'As idem_complete with a bytea body; the text is stored as its UTF-8 bytes.';
COMMENT ON FUNCTION @extschema@.idem_fail(text, text, text, integer, bytea, jsonb, text, integer) IS
  'Stores a definitive failure of a claim, to be replayed: true. The same result again is a no-op: false. No attempt means that of this transaction''s own claim, else 1. Raises ID001, ID002, ID003, ID005.';
COMMENT ON FUNCTION @extschema@.idem_fail(text, text, text, integer, text, jsonb, text, integer) IS
  'As idem_fail with a bytea body; the text is stored as its UTF-8 bytes.';
COMMENT ON FUNCTION @extschema@.idem_release(text, text, text, integer) IS
  'Gives up an open claim whose effect is known not to have happened: the key may be claimed again; true if there was one. A claim that was committed leaves a tombstone, so that its attempt is not given out again. Raises ID002, ID003; ID004 for a claim of this very transaction on an endpoint registered as transaction.';
COMMENT ON FUNCTION @extschema@.idem_checkpoint(text, text, text, text, jsonb, integer) IS
  'Stores the last committed step of an open claim, and what a reconciler needs to go on from there, in the transaction of that step. Raises ID001, ID002, ID003.';
COMMENT ON FUNCTION @extschema@.idem_forget(text, text, text) IS
  'For operators: makes a stored result a tombstone, so that the next arrival executes; false: there is none. Raises 55006 for an open claim.';
COMMENT ON FUNCTION @extschema@.idem_erase(text, text, text) IS
  'For operators: blanks the stored bodies, headers, references and recovery states of a tenant, of one of its endpoints, or of one key; returns how many rows. The protection stays: a replay has the code alone. Claims in progress are left as they are.';
COMMENT ON FUNCTION @extschema@.idem_sweep(integer) IS
  'Deletes up to max_rows finished or released rows whose retention has ended, in expiry order, skipping locked ones; returns how many.';
