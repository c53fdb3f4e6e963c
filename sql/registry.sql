-- The registry of protected endpoints. The functions that people call check and warn with their caller's rights; the
-- four that touch the tables switch to the tables' owner (src/registry.rs).

CREATE FUNCTION @extschema@.idem_register_endpoint(
  endpoint text, effect text, key_required boolean, retry_window interval, ttl interval, stuck_after interval,
  max_body_bytes integer, expected_writes_per_day bigint, guesses text[], notes text)
RETURNS text
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_register_endpoint';

CREATE FUNCTION @extschema@.idem_unregister_endpoint(endpoint text)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_unregister_endpoint';

CREATE FUNCTION @extschema@.idem_count_alive(endpoint text)
RETURNS bigint
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_count_alive';

CREATE FUNCTION @extschema@.idem_hand_out(max_claims integer, lease interval, only_endpoint text)
RETURNS jsonb
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_hand_out';

COMMENT ON FUNCTION @extschema@.idem_register_endpoint(
  text, text, boolean, interval, interval, interval, integer, bigint, text[], text) IS
  'Part of idem_protect(), which checks and warns: call that. Returns what the endpoint''s effect was before.';
COMMENT ON FUNCTION @extschema@.idem_unregister_endpoint(text) IS
  'Part of idem_unprotect(), which asks whether keys are alive: call that.';
COMMENT ON FUNCTION @extschema@.idem_count_alive(text) IS
  'Part of idem_unprotect(): the number of keys of an endpoint that are in progress or not expired.';
COMMENT ON FUNCTION @extschema@.idem_hand_out(integer, interval, text) IS
  'Part of idem_reconcile(): the claims as a jsonb array. Call that.';

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
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $idem_protect$
#variable_conflict use_column
DECLARE
  method        text := upper((regexp_match(idem_protect.endpoint, '^\s*(\S+)'))[1]);
  -- As messages print it: quoted, control characters escaped.
  printed       text := to_json(idem_protect.endpoint)::text;
  the_effect    text := coalesce(idem_protect.effect, 'transaction');
  the_window    interval := coalesce(idem_protect.retry_window, '24 hours');
  the_ttl       interval;
  the_stuck     interval := coalesce(idem_protect.stuck_after, '60 seconds');
  the_guesses   text[] := coalesce(idem_protect.guesses, '{}');
  guessable     text[] := ARRAY['effect', 'key_required', 'retry_window', 'ttl', 'stuck_after', 'max_body_bytes',
                                'expected_writes_per_day'];
  unknown_guess text;
  previous      text;
  -- Where the extension is now: its schema may have been renamed since it was created.
  home          regnamespace;
BEGIN
  SELECT x.extnamespace::regnamespace INTO home FROM pg_extension x WHERE x.extname = 'idempotency_enforcer';
  IF idem_protect.endpoint IS NULL OR octet_length(idem_protect.endpoint) NOT BETWEEN 1 AND 255 THEN
    RAISE EXCEPTION 'endpoint must have 1 to 255 bytes'
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It has %s.', coalesce(octet_length(idem_protect.endpoint)::text, 'none: it is null')),
            HINT = 'By convention it is METHOD /route/template, for example ''POST /payments''.';
  END IF;
  IF method IN ('GET', 'HEAD', 'OPTIONS', 'TRACE') THEN
    RAISE EXCEPTION 'endpoint % has nothing to protect', printed
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('%s is a safe method (RFC 9110): it asks for no change.', method),
            HINT = 'Register the endpoints whose effect must not happen twice.';
  END IF;
  IF the_effect NOT IN ('transaction', 'external') THEN
    RAISE EXCEPTION 'effect of endpoint % must be ''transaction'' or ''external''', printed
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It is %L.', the_effect),
            HINT = 'transaction: all of the effect is in the claim''s own transaction. external: some of it is not.';
  END IF;
  IF the_window <= '0' OR the_window > '18250 days' THEN
    RAISE EXCEPTION 'retry_window of endpoint % must be above zero and at most 50 years', printed
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It is %s.', the_window),
            HINT = 'Pass how long a client, a queue or an operator may still retry.';
  END IF;
  the_ttl := coalesce(idem_protect.ttl, greatest(the_window * 2, '24 hours'));
  IF the_ttl <= the_window THEN
    RAISE EXCEPTION 'ttl of endpoint % must be above its retry window', printed
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('The ttl is %s, the retry window %s.', the_ttl, the_window),
            HINT = 'A result that is forgotten while its client still retries is executed again. Leave ttl out for '
                   'twice the retry window.';
  END IF;
  IF the_ttl < '24 hours' OR the_ttl > '36500 days' THEN
    RAISE EXCEPTION 'ttl of endpoint % must be between 24 hours and 100 years', printed
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It is %s.', the_ttl),
            HINT = 'Leave ttl out for twice the retry window, at least 24 hours.';
  END IF;
  IF the_stuck <= '0' OR the_stuck > '36500 days' THEN
    RAISE EXCEPTION 'stuck_after of endpoint % must be above zero and at most 100 years', printed
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It is %s.', the_stuck),
            HINT = 'Pass the time of the slowest legitimate operation.';
  END IF;
  IF idem_protect.max_body_bytes < 0 OR idem_protect.expected_writes_per_day < 0 THEN
    RAISE EXCEPTION 'max_body_bytes and expected_writes_per_day of endpoint % must not be negative',
                    printed
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('They are %s and %s.', coalesce(idem_protect.max_body_bytes::text, 'null'),
                            coalesce(idem_protect.expected_writes_per_day::text, 'null')),
            HINT = 'Leave out what is not known.';
  END IF;
  SELECT g INTO unknown_guess FROM unnest(the_guesses) AS g WHERE g IS NULL OR g <> ALL (guessable) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'guesses of endpoint % names something that is not an input', printed
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It has %L.', unknown_guess),
            HINT = format('Inputs are %s.', array_to_string(guessable, ', '));
  END IF;

  IF method IN ('PUT', 'DELETE') THEN
    RAISE WARNING 'endpoint % is idempotent by definition', printed
      USING DETAIL = format('Repeating a %s asks for the same state again (RFC 9110).', method),
            HINT = 'Protect it only if its handler does more than that, or its response must be the first one.';
  END IF;
  IF the_ttl > '7 days' THEN
    RAISE WARNING 'ttl of endpoint % is over 7 days', printed
      USING DETAIL = format('It is %s: every result is stored that long.', the_ttl),
            HINT = 'Make sure that the table may grow to that many rows, or shorten the retry window.';
  END IF;

  EXECUTE format('SELECT %s.idem_register_endpoint($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)', home)
     INTO previous
    USING idem_protect.endpoint, the_effect, coalesce(idem_protect.key_required, true), the_window, the_ttl, the_stuck,
          idem_protect.max_body_bytes, idem_protect.expected_writes_per_day, the_guesses, idem_protect.notes;
  IF previous <> the_effect THEN
    RAISE NOTICE 'endpoint % changes from % to %', printed, previous, the_effect;
  END IF;
END
$idem_protect$;

COMMENT ON FUNCTION @extschema@.idem_protect(
  text, text, interval, interval, interval, boolean, integer, bigint, text[], text) IS
  'Registers an endpoint, or replaces its registration: what is left out takes its default. Raises 22023; warns of a ttl over 7 days and of PUT and DELETE.';

CREATE FUNCTION @extschema@.idem_unprotect(endpoint text, force boolean DEFAULT false)
RETURNS boolean
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $idem_unprotect$
#variable_conflict use_column
DECLARE
  alive   bigint;
  removed boolean;
  home    regnamespace;
BEGIN
  SELECT x.extnamespace::regnamespace INTO home FROM pg_extension x WHERE x.extname = 'idempotency_enforcer';
  IF idem_unprotect.force IS NOT TRUE THEN
    EXECUTE format('SELECT %s.idem_count_alive($1)', home) INTO alive USING idem_unprotect.endpoint;
    IF alive > 0 THEN
      RAISE EXCEPTION 'endpoint % has % keys that are still alive', to_json(idem_unprotect.endpoint), alive
        USING ERRCODE = 'object_in_use',
              DETAIL = 'Their clients may still retry; without the registration its rules no longer hold for them.',
              HINT = 'Wait until they have expired, or pass force => true. The rows stay either way.';
    END IF;
  END IF;
  EXECUTE format('SELECT %s.idem_unregister_endpoint($1)', home) INTO removed USING idem_unprotect.endpoint;
  RETURN removed;
END
$idem_unprotect$;

COMMENT ON FUNCTION @extschema@.idem_unprotect(text, boolean) IS
  'Removes an endpoint''s registration; true if there was one. Refused (55006) while it has keys in progress or unexpired, unless forced. Stored keys stay.';
