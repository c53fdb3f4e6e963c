-- The metrics, in the naming conventions of Prometheus: base units, _total for what only grows.
--
-- However many keys are stored, reading them stays in the milliseconds: the rows of the key store are estimated, and
-- only its two small indexes are looked at.

CREATE FUNCTION @extschema@.idem_is_preloaded()
RETURNS boolean
LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_is_preloaded';

COMMENT ON FUNCTION @extschema@.idem_is_preloaded() IS
  'Whether the library is in shared_preload_libraries, without which nothing is counted and no worker runs.';

-- A function, so that only the index of open claims is read, also before the table is analyzed for the first time.
CREATE FUNCTION @extschema@.idem_count_open_claims(OUT endpoint text, OUT open bigint, OUT stuck bigint)
RETURNS SETOF record
LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET lock_timeout = '5s'
AS $idem_count_open_claims$
#variable_conflict use_column
-- The names below are those of the schema at CREATE EXTENSION. Somebody else may have made that schema anew.
BEGIN
IF NOT EXISTS (SELECT FROM pg_extension x JOIN pg_namespace n ON n.oid = x.extnamespace
                WHERE x.extname = 'idempotency_enforcer' AND quote_ident(n.nspname) = $name$@extschema@$name$) THEN
  RAISE EXCEPTION 'the schema of extension idempotency_enforcer was renamed'
    USING ERRCODE = 'object_not_in_prerequisite_state',
          DETAIL = 'This function belongs to the schema that the extension was created in.',
          HINT = 'Rename the schema back, or create the extension anew. Claims and their completion follow a renaming.';
END IF;
-- Reading a table runs what its owner has put on it: that must not be with more rights than the owner's.
IF EXISTS (SELECT FROM pg_class c
            WHERE c.oid IN ('@extschema@.idempotency_keys'::regclass, '@extschema@.idempotency_endpoints'::regclass)
              AND c.relowner <> (SELECT r.oid FROM pg_roles r WHERE r.rolname = current_user)) THEN
  RAISE EXCEPTION 'the tables of idempotency_enforcer belong to another role than this function'
    USING ERRCODE = 'object_not_in_prerequisite_state',
          DETAIL = 'It acts with the rights of its own owner, and reading a table can run what the table''s owner has put on it.',
          HINT = 'ALTER FUNCTION idem_health(), idem_design_doc() and idem_count_open_claims() OWNER TO the tables'' owner.';
END IF;
BEGIN
  RETURN QUERY WITH claims AS (
    SELECT k.endpoint, count(*) AS open,
           count(*) FILTER (WHERE k.open_since < now() - coalesce(e.stuck_after, '60 seconds')) AS stuck
      FROM @extschema@.idempotency_keys k
      LEFT JOIN @extschema@.idempotency_endpoints e ON e.endpoint = k.endpoint
     WHERE k.open_since IS NOT NULL
     GROUP BY k.endpoint),
  -- Who puts ids into his endpoints must not flood a monitoring system.
  unregistered AS (
    SELECT c.*, row_number() OVER (ORDER BY c.open DESC, c.endpoint) AS rank
      FROM claims c
     WHERE NOT EXISTS (SELECT FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = c.endpoint))
  SELECT e.endpoint, coalesce(c.open, 0), coalesce(c.stuck, 0)
    FROM @extschema@.idempotency_endpoints e
    LEFT JOIN claims c ON c.endpoint = e.endpoint
   UNION ALL
  SELECT CASE WHEN u.rank <= 100 THEN u.endpoint ELSE '(other endpoints)' END, sum(u.open)::bigint, sum(u.stuck)::bigint
    FROM unregistered u
   GROUP BY 1;
END;
END
$idem_count_open_claims$;

COMMENT ON FUNCTION @extschema@.idem_count_open_claims() IS
  'Open and stuck claims of each registered endpoint and of up to a hundred others; the rest of those together.';

CREATE VIEW @extschema@.idem_metrics AS
-- Without preloading idem_counters() would raise: this condition is decided before it is called.
WITH counted AS (
  SELECT c.kind, c.endpoint, c.counters AS n
    FROM @extschema@.idem_counters() c
   WHERE @extschema@.idem_is_preloaded())
SELECT 'idempotency_arrivals_total' AS name,
       pg_catalog.jsonb_build_object('endpoint', c.endpoint, 'outcome', m.outcome) AS labels,
       m.value::double precision AS value
  FROM counted c
 CROSS JOIN LATERAL (VALUES
       ('execute', c.n[1]), ('replay', c.n[2]), ('in_progress', c.n[3]), ('key_reused', c.n[4]),
       ('key_rejected', c.n[5]), ('unprotected', c.n[6])) m(outcome, value)
 WHERE c.kind OPERATOR(pg_catalog.<>) 'database'
UNION ALL
SELECT 'idempotency_results_total',
       pg_catalog.jsonb_build_object('endpoint', c.endpoint, 'result', m.result),
       m.value::double precision
  FROM counted c
 CROSS JOIN LATERAL (VALUES ('succeeded', c.n[7]), ('failed', c.n[8]), ('released', c.n[9])) m(result, value)
 WHERE c.kind OPERATOR(pg_catalog.<>) 'database'
UNION ALL
SELECT m.name,
       pg_catalog.jsonb_build_object('endpoint', c.endpoint),
       m.value::double precision
  FROM counted c
 CROSS JOIN LATERAL (VALUES
       ('idempotency_guard_refusals_total', c.n[10]), ('idempotency_swept_rows_total', c.n[11])) m(name, value)
 WHERE c.kind OPERATOR(pg_catalog.<>) 'database'
UNION ALL
-- There is no worker in recovery, so nothing to say of it; 0 where it has not been here yet.
SELECT m.name, '{}', m.value
  FROM (SELECT coalesce(pg_catalog.max(c.n[13]), 0) AS rounds,
               coalesce(pg_catalog.max(c.n[14]), 0) OPERATOR(pg_catalog./) 1000000.0 AS ended,
               coalesce(pg_catalog.max(c.n[15]), 0) OPERATOR(pg_catalog./) 1000000.0 AS took
          FROM counted c
         WHERE c.kind OPERATOR(pg_catalog.=) 'database') w
 CROSS JOIN LATERAL (VALUES
       ('idempotency_worker_rounds_total', w.rounds::double precision),
       ('idempotency_worker_last_round_timestamp_seconds', w.ended::double precision),
       ('idempotency_worker_last_round_duration_seconds', w.took::double precision),
       ('idempotency_worker_interval_seconds', EXTRACT(
         epoch FROM pg_catalog.current_setting('idempotency_enforcer.sweep_interval', true)::interval)
         ::double precision)) m(name, value)
 WHERE @extschema@.idem_is_preloaded() AND NOT pg_catalog.pg_is_in_recovery()
UNION ALL
SELECT m.name,
       pg_catalog.jsonb_build_object('endpoint', c.endpoint),
       m.value::double precision
  FROM @extschema@.idem_count_open_claims() c
 CROSS JOIN LATERAL (VALUES
       ('idempotency_open_claims', c.open), ('idempotency_stuck_claims', c.stuck)) m(name, value)
UNION ALL
SELECT 'idempotency_sweep_lag_seconds',
       '{}',
       coalesce(EXTRACT(epoch FROM pg_catalog.now() OPERATOR(pg_catalog.-) (
         SELECT k.expires_at
           FROM @extschema@.idempotency_keys k
          WHERE k.expires_at OPERATOR(pg_catalog.<=) pg_catalog.now()
            AND k.status OPERATOR(pg_catalog.<>) 'in_progress'
          ORDER BY k.expires_at
          LIMIT 1))::double precision, 0)
UNION ALL
SELECT m.name, '{}', m.value::double precision
  FROM pg_catalog.pg_class r
 CROSS JOIN LATERAL (VALUES
       ('idempotency_table_rows',
         CASE WHEN r.reltuples OPERATOR(pg_catalog.>=) 0::real THEN r.reltuples::bigint
              ELSE pg_catalog.pg_stat_get_live_tuples(r.oid) END),
       ('idempotency_table_dead_rows', pg_catalog.pg_stat_get_dead_tuples(r.oid)),
       ('idempotency_table_size_bytes', pg_catalog.pg_table_size(r.oid)),
       ('idempotency_table_index_size_bytes', pg_catalog.pg_indexes_size(r.oid))) m(name, value)
 WHERE r.oid OPERATOR(pg_catalog.=) '@extschema@.idempotency_keys'::pg_catalog.regclass
UNION ALL
SELECT 'idempotency_preloaded', '{}', @extschema@.idem_is_preloaded()::integer::double precision;

COMMENT ON VIEW @extschema@.idem_metrics IS
  'One row a metric of this database, named as Prometheus names them; what is counted in shared memory only where the library is preloaded. No tenants, no keys. See monitoring/ for a postgres_exporter file, alerts and a dashboard.';
COMMENT ON COLUMN @extschema@.idem_metrics.name IS 'With base unit; _total for what only grows.';
COMMENT ON COLUMN @extschema@.idem_metrics.labels IS 'An object of strings: endpoint, outcome, result; or none.';
COMMENT ON COLUMN @extschema@.idem_metrics.value IS 'The value now.';
