-- What idem_health() finds of the library, its worker and its settings.
SET LOCAL search_path = pg_catalog, pg_temp;

-- The names in a setting that is a list, as PostgreSQL reads it: separated by commas, some in double quotes.
CREATE FUNCTION @extschema@._idem_names_in(list text, OUT n bigint, OUT name text)
RETURNS SETOF record
LANGUAGE sql IMMUTABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT m.n, CASE WHEN m.found[1] LIKE '"%' THEN replace(substr(m.found[1], 2, length(m.found[1]) - 2), '""', '"')
                   ELSE btrim(m.found[1]) END
    FROM regexp_matches(list, '("(?:[^"]|"")*"|[^",]+)', 'g') WITH ORDINALITY m(found, n)
   WHERE btrim(m.found[1]) <> '';
END;

COMMENT ON FUNCTION @extschema@._idem_names_in(text) IS
  'The names in a setting such as shared_preload_libraries.';

CREATE FUNCTION @extschema@._idem_health_library(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT 'warning', 'The library is not preloaded: no worker sweeps or reports stuck claims, and nothing is counted.',
         format('ALTER SYSTEM SET shared_preload_libraries = %s; -- then restart the server',
                (SELECT string_agg(@extschema@._idem_literal(l.name), ', ' ORDER BY l.n)
                   FROM (SELECT p.n, p.name
                           FROM @extschema@._idem_names_in(current_setting('shared_preload_libraries')) p
                          UNION ALL SELECT 1000000, 'idempotency_enforcer') l))
   WHERE NOT @extschema@.idem_is_preloaded();
END;

COMMENT ON FUNCTION @extschema@._idem_health_library() IS
  'Part of idem_health(): whether the library is preloaded. Also on a standby.';

-- What the findings about the worker are made of: one row where the library is preloaded.
CREATE FUNCTION @extschema@._idem_worker_state(
  OUT every interval, OUT visited boolean, OUT launcher integer, OUT slots integer, OUT slots_taken bigint,
  OUT last_round timestamptz, OUT overdue boolean)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT s.*,
         -- A database's turn comes once an interval, or once all have had their second; a round may take twice as long.
         s.visited AND clock_timestamp() - s.last_round > 3 * greatest(s.every, (
           SELECT count(*) * interval '1 second' FROM pg_database d
            WHERE d.datallowconn AND NOT d.datistemplate
              AND @extschema@._idem_visits(d.datname::text))) + interval '5 seconds'
    FROM (SELECT i.every,
                 i.every > '0' AND @extschema@._idem_visits(current_database()::text) AS visited,
                 (SELECT min(a.pid) FROM pg_stat_activity a
                   WHERE a.backend_type = 'idempotency_enforcer launcher') AS launcher,
                 current_setting('max_worker_processes')::integer AS slots,
                 -- A visit that is under way is a slot of ours, and no reason for one to be missing.
                 (SELECT count(*) FROM pg_stat_activity a
                   WHERE a.backend_type <> ALL (ARRAY[
                           'client backend', 'autovacuum launcher', 'autovacuum worker', 'background writer',
                           'checkpointer', 'walwriter', 'walsender', 'walreceiver', 'walsummarizer', 'startup',
                           'archiver', 'logger', 'io worker', 'slotsync worker', 'standalone backend',
                           'idempotency_enforcer worker'])) AS slots_taken,
                 (SELECT to_timestamp(nullif(max(c.n[14]), 0) / 1000000.0)
                    FROM @extschema@._idem_counted() c WHERE c.kind = 'database') AS last_round
            FROM (SELECT current_setting('idempotency_enforcer.sweep_interval', true)::interval AS every
                   WHERE @extschema@.idem_is_preloaded()) i) s;
END;

COMMENT ON FUNCTION @extschema@._idem_worker_state() IS
  'Part of idem_health(): what the findings about the worker are made of.';

CREATE FUNCTION @extschema@._idem_health_worker(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  WITH w AS MATERIALIZED (
    SELECT s.*, CASE WHEN s.slots_taken >= s.slots
                          AND (s.launcher IS NULL OR s.overdue OR s.visited AND s.last_round IS NULL) THEN 'no slot'
                     WHEN s.launcher IS NULL THEN 'no launcher'
                     WHEN s.overdue THEN 'overdue' ELSE 'none' END AS trouble
      FROM @extschema@._idem_worker_state() s)

  -- No slot.
  SELECT 'critical',
         format('All %s background worker slots (max_worker_processes) are taken: none is left for the worker.',
                w.slots),
         format('ALTER SYSTEM SET max_worker_processes = %s; -- then restart the server', w.slots + 4)
    FROM w WHERE w.trouble = 'no slot'
  UNION ALL
  -- No launcher.
  SELECT 'critical', 'The launcher is not running: nothing is swept, no stuck claim is reported.',
         '-- It starts again 5 seconds after it has ended. If it does not, see the server''s log and restart it.'
    FROM w WHERE w.trouble = 'no launcher'
  UNION ALL
  -- No round for too long. The worker leaves at once when it would have to wait for a lock.
  SELECT 'critical',
         format('The last round was %s ago, with a sweep_interval of %s.%s',
                date_trunc('second', clock_timestamp() - w.last_round), w.every,
                CASE WHEN l.pid IS NOT NULL
                     THEN format(' Process %s holds a lock on %s (%s) that keeps the worker out.',
                                 l.pid, l.printed, l.mode)
                END),
         CASE WHEN l.pid IS NULL
              THEN format('SELECT pg_catalog.pg_terminate_backend(%s); -- the launcher, which starts again 5 seconds '
                          'later; see the server''s log', w.launcher)
              ELSE format('SELECT pg_catalog.pg_terminate_backend(%s); -- or wait for its transaction to end',
                          l.pid) END
    FROM w
    LEFT JOIN (SELECT l.pid, l.mode, r.printed
                 FROM pg_locks l
                 JOIN @extschema@._idem_named_relations() r ON r.relation = l.relation
                WHERE l.locktype = 'relation' AND l.granted AND l.pid IS NOT NULL
                  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
                  AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
                LIMIT 1) l ON true
   WHERE w.trouble = 'overdue'
  UNION ALL
  -- The rounds are turned off.
  SELECT 'info', 'The worker''s rounds are turned off (sweep_interval is 0): something else must call idem_sweep().',
         'ALTER SYSTEM SET idempotency_enforcer.sweep_interval = ''60s''; -- then SELECT pg_reload_conf();'
    FROM w WHERE w.every = '0'
  UNION ALL
  -- This database is left out.
  SELECT 'warning',
         format('The worker does not visit this database: idempotency_enforcer.databases is %s.', to_json(d.list)),
         CASE WHEN d.name ~ E'[\\n\\r]'
              THEN '-- The name of this database ends a line, which ALTER SYSTEM does not take: write it into '
                   'postgresql.conf.'
              ELSE format('ALTER SYSTEM SET idempotency_enforcer.databases = %s; -- then SELECT pg_reload_conf();',
                          @extschema@._idem_literal(concat_ws(', ', nullif(d.list, '') || d.quote_left_out, CASE
                            WHEN d.name ~ '^[A-Za-z0-9_]+$' THEN d.name
                            ELSE '"' || replace(d.name, '"', '""') || '"' END))) END
    FROM w, (SELECT current_database()::text AS name, s.list,
                    -- Everything up to the end would be in the last name.
                    CASE WHEN (length(s.list) - length(replace(s.list, '"', ''))) % 2 = 1 THEN '"' ELSE '' END
                      AS quote_left_out
               FROM (SELECT current_setting('idempotency_enforcer.databases', true) AS list) s) d
   WHERE w.every > '0' AND NOT w.visited
  UNION ALL
  -- Not here yet.
  SELECT 'info', 'The worker has not been in this database since the server started or the counters were reset.',
         format('-- Its first round comes within %s. If it does not, see the server''s log.', 2 * w.every)
    FROM w WHERE w.visited AND w.trouble = 'none' AND w.last_round IS NULL
  UNION ALL
  -- Registered endpoints that found no counters of their own. One database alone gets at most half of them.
  SELECT 'info', format('Not all registered endpoints have counters of their own: max_tracked_endpoints is %s, for all '
                        'databases together.', s.setting),
         CASE WHEN s.setting::bigint < s.max_val::bigint
              THEN format('ALTER SYSTEM SET idempotency_enforcer.max_tracked_endpoints = %s; -- then restart the '
                          'server; an endpoint is a template such as POST /orders/{id}/refund, without ids',
                          least(4 * s.setting::bigint, s.max_val::bigint))
              ELSE '-- An endpoint is a template such as POST /orders/{id}/refund, without ids: take them out of the '
                   'names.' END
    FROM pg_settings s
   WHERE s.name = 'idempotency_enforcer.max_tracked_endpoints'
     AND EXISTS (SELECT FROM @extschema@._idem_counted() c WHERE c.kind = 'database' AND c.n[16] > 0)
  UNION ALL
  -- Anybody may use a mistyped endpoint.
  SELECT 'info',
         'require_registration is off: an endpoint that is not registered, or mistyped, is claimed all the same.',
         'ALTER SYSTEM SET idempotency_enforcer.require_registration = on; -- then SELECT pg_reload_conf(); it may '
         'also be set by ALTER DATABASE or ALTER ROLE'
    FROM pg_settings s
   WHERE s.name = 'idempotency_enforcer.require_registration' AND s.setting = 'off';
END;

COMMENT ON FUNCTION @extschema@._idem_health_worker() IS
  'Part of idem_health(): the launcher, its rounds, its settings.';

SET LOCAL search_path = @extschema@, pg_temp;
