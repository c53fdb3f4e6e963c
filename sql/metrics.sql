-- The metrics, in the naming conventions of Prometheus: base units, _total for what only grows.
--
-- However many keys are stored, reading them stays in the milliseconds: the rows of the key store are estimated, and
-- only its two small indexes are looked at.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE FUNCTION @extschema@.idem_count_open_claims(OUT endpoint text, OUT open bigint, OUT stuck bigint)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT c.endpoint, c.open, c.stuck FROM @extschema@._idem_open_claims() c;
END;

COMMENT ON FUNCTION @extschema@.idem_count_open_claims() IS
  'Open and stuck claims of each registered endpoint and of up to a hundred others; the rest of those together in a row without an endpoint.';

CREATE VIEW @extschema@.idem_metrics AS
WITH counted AS (SELECT c.kind, c.endpoint, c.n FROM @extschema@._idem_counted() c)
SELECT 'idempotency_arrivals_total' AS name,
       jsonb_build_object('endpoint', c.endpoint, 'outcome', m.outcome) AS labels,
       m.value::double precision AS value
  FROM counted c
 CROSS JOIN LATERAL (VALUES
       ('execute', c.n[1]), ('replay', c.n[2]), ('in_progress', c.n[3]), ('key_reused', c.n[4]),
       ('key_rejected', c.n[5]), ('unprotected', c.n[6])) m(outcome, value)
 WHERE c.kind <> 'database'
UNION ALL
SELECT 'idempotency_results_total',
       jsonb_build_object('endpoint', c.endpoint, 'result', m.result),
       m.value::double precision
  FROM counted c
 CROSS JOIN LATERAL (VALUES ('succeeded', c.n[7]), ('failed', c.n[8]), ('released', c.n[9])) m(result, value)
 WHERE c.kind <> 'database'
UNION ALL
SELECT m.name,
       jsonb_build_object('endpoint', c.endpoint),
       m.value::double precision
  FROM counted c
 CROSS JOIN LATERAL (VALUES
       ('idempotency_guard_refusals_total', c.n[10]), ('idempotency_swept_rows_total', c.n[11])) m(name, value)
 WHERE c.kind <> 'database'
UNION ALL
-- There is no worker in recovery, so nothing to say of it; 0 where it has not been here yet.
SELECT m.name, '{}', m.value
  FROM (SELECT coalesce(max(c.n[13]), 0) AS rounds,
               coalesce(max(c.n[14]), 0) / 1000000.0 AS ended,
               coalesce(max(c.n[15]), 0) / 1000000.0 AS took
          FROM counted c
         WHERE c.kind = 'database') w
 CROSS JOIN LATERAL (VALUES
       ('idempotency_worker_rounds_total', w.rounds::double precision),
       ('idempotency_worker_last_round_timestamp_seconds', w.ended::double precision),
       ('idempotency_worker_last_round_duration_seconds', w.took::double precision),
       ('idempotency_worker_interval_seconds', EXTRACT(
         epoch FROM current_setting('idempotency_enforcer.sweep_interval', true)::interval)::double precision)
       ) m(name, value)
 WHERE @extschema@.idem_is_preloaded() AND NOT pg_is_in_recovery()
UNION ALL
-- The rest of the endpoints, and whatever has claims under their name, are one series.
SELECT m.name,
       jsonb_build_object('endpoint', c.label),
       m.value::double precision
  FROM (SELECT coalesce(o.endpoint, '(other endpoints)') AS label, sum(o.open) AS open, sum(o.stuck) AS stuck
          FROM @extschema@._idem_open_claims() o
         GROUP BY label) c
 CROSS JOIN LATERAL (VALUES
       ('idempotency_open_claims', c.open), ('idempotency_stuck_claims', c.stuck)) m(name, value)
UNION ALL
SELECT 'idempotency_sweep_lag_seconds',
       '{}',
       coalesce(EXTRACT(epoch FROM @extschema@._idem_sweep_lag())::double precision, 0)
UNION ALL
-- Of the table and its partitions.
SELECT m.name, '{}', m.value::double precision
  FROM (SELECT sum(CASE WHEN c.reltuples >= 0 THEN c.reltuples::bigint
                        ELSE pg_stat_get_live_tuples(c.oid) END) AS live,
               sum(pg_stat_get_dead_tuples(c.oid)) AS dead,
               sum(pg_table_size(c.oid)) AS own_size,
               sum(pg_indexes_size(c.oid)) AS index_size
          FROM @extschema@._idem_relations() r
          JOIN pg_class c ON c.oid = r.relation
         WHERE r.is_keys AND c.relkind = 'r') t
 CROSS JOIN LATERAL (VALUES
       ('idempotency_table_rows', t.live), ('idempotency_table_dead_rows', t.dead),
       ('idempotency_table_size_bytes', t.own_size),
       ('idempotency_table_index_size_bytes', t.index_size)) m(name, value)
UNION ALL
SELECT 'idempotency_preloaded', '{}', @extschema@.idem_is_preloaded()::integer::double precision;

COMMENT ON VIEW @extschema@.idem_metrics IS
  'One row a metric of this database, named as Prometheus names them; what is counted in shared memory only where the library is preloaded. No tenants, no keys. See monitoring/ for a postgres_exporter file, alerts and a dashboard.';
COMMENT ON COLUMN @extschema@.idem_metrics.name IS 'With base unit; _total for what only grows.';
COMMENT ON COLUMN @extschema@.idem_metrics.labels IS 'An object of strings: endpoint, outcome, result; or none.';
COMMENT ON COLUMN @extschema@.idem_metrics.value IS 'The value now.';

SET LOCAL search_path = @extschema@, pg_temp;
