-- Counters in shared memory, per database and endpoint.

CREATE FUNCTION @extschema@.idem_is_preloaded()
RETURNS boolean
LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_is_preloaded';

COMMENT ON FUNCTION @extschema@.idem_is_preloaded() IS
  'Whether the library is in shared_preload_libraries, without which nothing is counted and no worker runs.';

CREATE FUNCTION @extschema@.idem_counters(OUT kind text, OUT endpoint text, OUT counters bigint[])
RETURNS SETOF record
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_counters';

CREATE FUNCTION @extschema@.idem_stats_reset()
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_stats_reset';

CREATE FUNCTION @extschema@._idem_visits(database text)
RETURNS boolean
LANGUAGE c STABLE PARALLEL SAFE AS 'MODULE_PATHNAME', '_idem_visits';

CREATE VIEW @extschema@.idem_stats AS
SELECT c.kind,
       c.endpoint,
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
 ORDER BY c.endpoint NULLS FIRST;

COMMENT ON FUNCTION @extschema@.idem_counters() IS
  'The counters behind idem_stats. kind: database (endpoint is NULL), endpoint, or others. counters: executed, replayed, in_progress, key_reused, key_rejected, unprotected, completed, failed, released, guard_refused, swept, stuck_seen; of the database rounds, the end (microseconds since 1970) and length (microseconds) of the last one, and what was counted for registered endpoints among the others because no slot was free. Raises 55000 when the library is not preloaded.';
COMMENT ON FUNCTION @extschema@.idem_stats_reset() IS
  'Starts the counters of this database from zero, and makes room for other endpoints. Raises 55000 when the library is not preloaded.';
COMMENT ON FUNCTION @extschema@._idem_visits(text) IS
  'Whether idempotency_enforcer.databases lets the worker visit the database of this name; NULL when the library is not preloaded.';
COMMENT ON VIEW @extschema@.idem_stats IS
  'Counters of this database since the server started or idem_stats_reset(), one row an endpoint; they count calls, also of transactions that rolled back. The row without an endpoint is the worker''s.';
COMMENT ON COLUMN @extschema@.idem_stats.kind IS
  'database: the worker''s rounds here. endpoint: a registered endpoint. others: all that are not registered or found no room (max_tracked_endpoints).';
COMMENT ON COLUMN @extschema@.idem_stats.endpoint IS 'NULL: the database itself. (other endpoints): the others, together.';
COMMENT ON COLUMN @extschema@.idem_stats.executed IS 'First arrivals.';
COMMENT ON COLUMN @extschema@.idem_stats.replayed IS 'Arrivals that got the stored response.';
COMMENT ON COLUMN @extschema@.idem_stats.in_progress IS 'Arrivals that got a 409.';
COMMENT ON COLUMN @extschema@.idem_stats.key_reused IS 'Arrivals that got a 422.';
COMMENT ON COLUMN @extschema@.idem_stats.key_rejected IS 'Arrivals that got a 400: key missing or invalid.';
COMMENT ON COLUMN @extschema@.idem_stats.unprotected IS 'Arrivals without a key where none is required.';
COMMENT ON COLUMN @extschema@.idem_stats.completed IS 'Successes stored.';
COMMENT ON COLUMN @extschema@.idem_stats.failed IS 'Failures stored.';
COMMENT ON COLUMN @extschema@.idem_stats.released IS 'Claims given up by idem_release().';
COMMENT ON COLUMN @extschema@.idem_stats.guard_refused IS 'Commits refused because of a claim left open (ID004).';
COMMENT ON COLUMN @extschema@.idem_stats.swept IS 'Expired rows deleted.';
COMMENT ON COLUMN @extschema@.idem_stats.stuck_seen IS 'Stuck claims that the worker saw, added up over its rounds.';
COMMENT ON COLUMN @extschema@.idem_stats.rounds IS 'Rounds of the worker in this database.';
COMMENT ON COLUMN @extschema@.idem_stats.last_round_at IS 'When the last round ended.';
COMMENT ON COLUMN @extschema@.idem_stats.last_round_took IS 'How long it took.';
