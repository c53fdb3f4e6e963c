-- Counters in shared memory, per database and endpoint.

CREATE FUNCTION @extschema@.idem_counters(OUT endpoint bytea, OUT counters bigint[])
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_counters_wrapper';

CREATE FUNCTION @extschema@.idem_stats_reset()
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_stats_reset_wrapper';

CREATE VIEW @extschema@.idem_stats AS
SELECT CASE WHEN pg_catalog.octet_length(c.endpoint) OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.convert_from(c.endpoint, 'UTF8') END AS endpoint,
       c.counters[1] AS executed,
       c.counters[2] AS replayed,
       c.counters[3] AS in_progress,
       c.counters[4] AS key_reused,
       c.counters[5] AS key_rejected,
       c.counters[6] AS unprotected,
       c.counters[7] AS completed,
       c.counters[8] AS failed,
       c.counters[9] AS released,
       c.counters[10] AS guard_refused,
       c.counters[11] AS swept,
       c.counters[12] AS stuck_seen,
       c.counters[13] AS rounds,
       CASE WHEN c.counters[14] OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.to_timestamp(c.counters[14] OPERATOR(pg_catalog./) 1000000.0) END AS last_round_at,
       CASE WHEN c.counters[14] OPERATOR(pg_catalog.>) 0
            THEN pg_catalog.make_interval(secs => c.counters[15] OPERATOR(pg_catalog./) 1000000.0) END AS last_round_took
  FROM @extschema@.idem_counters() c
 ORDER BY 1 NULLS FIRST;

COMMENT ON FUNCTION @extschema@.idem_counters() IS
  'The counters behind idem_stats, unnamed. Raises 55000 when the library is not preloaded.';
COMMENT ON FUNCTION @extschema@.idem_stats_reset() IS
  'Sets the counters of this database to zero. Raises 55000 when the library is not preloaded.';
COMMENT ON VIEW @extschema@.idem_stats IS
  'Counters of this database since the server started or idem_stats_reset(), one row an endpoint; they count calls, also of transactions that rolled back. The row without an endpoint is the worker''s.';
COMMENT ON COLUMN @extschema@.idem_stats.endpoint IS 'NULL: the database itself. (other endpoints): all that found no room.';
COMMENT ON COLUMN @extschema@.idem_stats.executed IS 'First arrivals.';
COMMENT ON COLUMN @extschema@.idem_stats.replayed IS 'Arrivals that got the stored response.';
COMMENT ON COLUMN @extschema@.idem_stats.in_progress IS 'Arrivals that got a 409.';
COMMENT ON COLUMN @extschema@.idem_stats.key_reused IS 'Arrivals that got a 422.';
COMMENT ON COLUMN @extschema@.idem_stats.key_rejected IS 'Arrivals that got a 400: key missing or invalid.';
COMMENT ON COLUMN @extschema@.idem_stats.unprotected IS 'Arrivals without a key where none is required.';
COMMENT ON COLUMN @extschema@.idem_stats.completed IS 'Successes stored.';
COMMENT ON COLUMN @extschema@.idem_stats.failed IS 'Failures stored.';
COMMENT ON COLUMN @extschema@.idem_stats.released IS 'Claims forgotten by idem_release().';
COMMENT ON COLUMN @extschema@.idem_stats.guard_refused IS 'Commits refused because of a claim left open (ID004).';
COMMENT ON COLUMN @extschema@.idem_stats.swept IS 'Expired rows deleted.';
COMMENT ON COLUMN @extschema@.idem_stats.stuck_seen IS 'Stuck claims that the worker saw, added up over its rounds.';
COMMENT ON COLUMN @extschema@.idem_stats.rounds IS 'Rounds of the worker in this database.';
COMMENT ON COLUMN @extschema@.idem_stats.last_round_at IS 'When the last round ended.';
COMMENT ON COLUMN @extschema@.idem_stats.last_round_took IS 'How long it took.';
