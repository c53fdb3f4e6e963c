-- An application may have a table of its own with one of our names: say so before anything is made.
DO $preflight$
DECLARE
  taken text;
BEGIN
  SELECT pg_catalog.format('%I.%I', n.nspname, c.relname) INTO taken
    FROM pg_catalog.pg_class c
    JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) c.relnamespace
   WHERE n.oid OPERATOR(pg_catalog.=) '@extschema@'::pg_catalog.regnamespace
     AND c.relname OPERATOR(pg_catalog.=) ANY (ARRAY[
           'idempotency_keys', 'idempotency_endpoints', 'idem_keys', 'idem_key_details', 'idem_stuck',
           'idem_endpoint_summary', 'idem_stats', 'idem_metrics'
         ]::pg_catalog.name[])
   ORDER BY c.relname
   LIMIT 1;
  IF EXISTS (SELECT FROM pg_catalog.pg_proc p
              WHERE p.pronamespace OPERATOR(pg_catalog.=) '@extschema@'::pg_catalog.regnamespace
                AND p.proname::pg_catalog.text OPERATOR(pg_catalog.~) '^_?idem_') THEN
    RAISE EXCEPTION 'a function whose name begins with idem_ is in the schema already'
      USING ERRCODE = 'duplicate_function',
            DETAIL = 'Beside those of the extension it could be taken for one of them.',
            HINT = 'Drop it, or install into a schema of its own, in which nobody else may create objects.';
  END IF;
  IF taken IS NOT NULL THEN
    RAISE EXCEPTION 'relation % already exists and does not belong to idempotency_enforcer', taken
      USING ERRCODE = 'duplicate_table',
            DETAIL = 'The extension never takes over a table that it did not create.',
            HINT = 'Install into a schema of its own: CREATE SCHEMA idempotency; '
                   'CREATE EXTENSION idempotency_enforcer SCHEMA idempotency;';
  END IF;
END
$preflight$;
