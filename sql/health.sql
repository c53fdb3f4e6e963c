-- What a person would check by hand, one row a finding. Every remedy is SQL that a superuser can run as it is, line by
-- line; what SQL cannot do is in a comment.

CREATE FUNCTION @extschema@.idem_health()
RETURNS TABLE (severity text, finding text, remedy text)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- However small the table was when this was planned, only its indexes are read.
SET enable_seqscan = off
SET jit = off
-- Better an error than a monitor that hangs.
SET lock_timeout = '5s'
AS $idem_health$
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
DECLARE
  keys         CONSTANT regclass := '@extschema@.idempotency_keys';
  endpoints    CONSTANT regclass := '@extschema@.idempotency_endpoints';
  preloaded    CONSTANT boolean := @extschema@.idem_is_preloaded();
  -- NULL when the library is not preloaded, and so has no settings.
  interval_now CONSTANT interval := current_setting('idempotency_enforcer.sweep_interval', true);
  settle       interval;
  slots        CONSTANT integer := current_setting('max_worker_processes');
  slots_taken  integer;
  launcher     integer;
  visited      boolean;
  last_round   timestamptz;
  overdue      boolean;
  by_expiry    boolean;
  by_age       boolean;
  found_row    record;
BEGIN
  -- The library and its worker.

  IF NOT preloaded THEN
    severity := 'warning';
    finding := 'The library is not preloaded: no worker sweeps or reports stuck claims, and nothing is counted.';
    SELECT format('ALTER SYSTEM SET shared_preload_libraries = %s; -- then restart the server',
                  string_agg(quote_literal(l.name), ', ' ORDER BY l.n))
      INTO remedy
      FROM (SELECT trim(both ' "' FROM p.name) AS name, p.n
              FROM string_to_table(current_setting('shared_preload_libraries'), ',') WITH ORDINALITY p(name, n)
             WHERE p.name <> ''
             UNION ALL SELECT 'idempotency_enforcer', 1000000) l;
    RETURN NEXT;
  END IF;
  IF pg_is_in_recovery() THEN
    RETURN; -- the rest is the primary's
  END IF;

  IF preloaded THEN
    SELECT a.pid INTO launcher FROM pg_stat_activity a WHERE a.backend_type = 'idempotency_enforcer launcher';
    visited := interval_now > '0' AND (
      trim(current_setting('idempotency_enforcer.databases')) = ''
      OR EXISTS (SELECT FROM string_to_table(current_setting('idempotency_enforcer.databases'), ',') d(name)
                  WHERE trim(both '"' FROM trim(d.name)) = current_database()));
    SELECT to_timestamp(nullif(max(c.counters[14]), 0) / 1000000.0) INTO last_round
      FROM @extschema@.idem_counters() c WHERE c.kind = 'database';
    -- A database's turn comes once an interval; a round of many databases may take as long again.
    overdue := visited AND clock_timestamp() - last_round > 3 * interval_now + interval '5 seconds';
    -- A visit that is under way is a slot of ours, and no reason for one to be missing.
    SELECT count(*) INTO slots_taken
      FROM pg_stat_activity a
     WHERE a.backend_type <> ALL (ARRAY[
             'client backend', 'autovacuum launcher', 'autovacuum worker', 'background writer', 'checkpointer',
             'walwriter', 'walsender', 'walreceiver', 'walsummarizer', 'startup', 'archiver', 'logger', 'io worker',
             'slotsync worker', 'standalone backend', 'idempotency_enforcer worker']);

    IF slots_taken >= slots AND (launcher IS NULL OR overdue OR visited AND last_round IS NULL) THEN
      severity := 'critical';
      finding := format('All %s background worker slots (max_worker_processes) are taken: none is left for the worker.',
                        slots);
      remedy := format('ALTER SYSTEM SET max_worker_processes = %s; -- then restart the server', slots + 4);
      RETURN NEXT;
    ELSIF launcher IS NULL THEN
      severity := 'critical';
      finding := 'The launcher is not running: nothing is swept, no stuck claim is reported.';
      remedy := '-- It starts again 5 seconds after it has ended. If it does not, see the server''s log and restart it.';
      RETURN NEXT;
    ELSIF overdue THEN
      severity := 'critical';
      finding := format('The last round was %s ago, with a sweep_interval of %s.',
                        date_trunc('second', clock_timestamp() - last_round), interval_now);
      remedy := format('SELECT pg_terminate_backend(%s); -- the launcher starts again 5 seconds later; see the server''s log',
                       launcher);
      -- The worker leaves at once when it would have to wait for a lock.
      SELECT l.pid, l.mode INTO found_row
        FROM pg_locks l
       WHERE l.locktype = 'relation' AND l.relation = keys AND l.granted AND l.pid IS NOT NULL
         AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
         AND l.mode IN ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
       LIMIT 1;
      IF FOUND THEN
        finding := format('%s Process %s holds a lock on %s (%s) that keeps the worker out.',
                          finding, found_row.pid, keys, found_row.mode);
        remedy := format('SELECT pg_terminate_backend(%s); -- or wait for its transaction to end', found_row.pid);
      END IF;
      RETURN NEXT;
    END IF;

    IF interval_now = '0' THEN
      severity := 'info';
      finding := 'The worker''s rounds are turned off (sweep_interval is 0): something else must call idem_sweep().';
      remedy := E'ALTER SYSTEM SET idempotency_enforcer.sweep_interval = ''60s'';\nSELECT pg_reload_conf();';
      RETURN NEXT;
    ELSIF NOT visited THEN
      severity := 'warning';
      finding := format('The worker does not visit this database: idempotency_enforcer.databases is %L.',
                        current_setting('idempotency_enforcer.databases'));
      remedy := format(E'ALTER SYSTEM SET idempotency_enforcer.databases = %L;\nSELECT pg_reload_conf();',
                       current_setting('idempotency_enforcer.databases') || ', ' || current_database());
      RETURN NEXT;
    ELSIF launcher IS NOT NULL AND last_round IS NULL AND slots_taken < slots THEN
      severity := 'info';
      finding := 'The worker has not been in this database since the server started or the counters were reset.';
      remedy := format('-- Its first round comes within %s. If it does not, see the server''s log.', 2 * interval_now);
      RETURN NEXT;
    END IF;

    IF EXISTS (SELECT FROM @extschema@.idem_counters() c
                WHERE c.kind = 'database' AND c.counters[16] > 0) THEN
      severity := 'info';
      finding := format('Not all registered endpoints have counters of their own, with a max_tracked_endpoints of %s for '
                        'all databases.', current_setting('idempotency_enforcer.max_tracked_endpoints'));
      remedy := format('ALTER SYSTEM SET idempotency_enforcer.max_tracked_endpoints = %s; -- then restart the server; '
                       'an endpoint is a template such as POST /orders/{id}/refund, without ids',
                       least(4 * current_setting('idempotency_enforcer.max_tracked_endpoints')::integer, 100000));
      RETURN NEXT;
    END IF;
  END IF;

  -- The tables: indexes first, because what follows reads them.

  FOR found_row IN
    SELECT i.indexrelid::regclass AS index, c.relname LIKE '%\_ccnew%' OR c.relname LIKE '%\_ccold%' AS leftover
      FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
     WHERE i.indrelid IN (keys, endpoints) AND NOT (i.indisvalid AND i.indisready)
     ORDER BY c.relname
  LOOP
    severity := 'critical';
    finding := format('Index %s is invalid.', found_row.index);
    remedy := format(CASE WHEN found_row.leftover THEN 'DROP INDEX %s; -- left by a REINDEX CONCURRENTLY that failed'
                          ELSE 'REINDEX INDEX CONCURRENTLY %s;' END, found_row.index);
    RETURN NEXT;
  END LOOP;

  FOR found_row IN
    SELECT w.*, EXISTS (
             SELECT FROM pg_index i
              WHERE i.indrelid = w.relation AND i.indisvalid AND i.indisunique >= w.is_unique AND i.indimmediate
                AND (i.indpred IS NOT NULL) = w.is_partial
                AND (SELECT array_agg(a.attname::text ORDER BY k.n)
                       FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n)
                       JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum) = w.columns) AS there,
           -- An invalid one of that name has been reported.
           EXISTS (SELECT FROM pg_class c
                    WHERE c.relname = w.name AND c.relkind = 'i' AND c.relnamespace = '@extschema@'::regnamespace)
             AS name_taken
      FROM (VALUES
        (keys, 'idempotency_keys_pkey', ARRAY['tenant_id', 'endpoint', 'key'], true, false,
         'nothing but it stops two executions',
         'ALTER TABLE %s ADD CONSTRAINT idempotency_keys_pkey PRIMARY KEY (tenant_id, endpoint, key);'),
        (endpoints, 'idempotency_endpoints_pkey', ARRAY['endpoint'], true, false,
         'an endpoint could have two registrations',
         'ALTER TABLE %s ADD CONSTRAINT idempotency_endpoints_pkey PRIMARY KEY (endpoint);'),
        (keys, 'idempotency_keys_expires_at_idx', ARRAY['expires_at'], false, false,
         'every sweep reads the whole table',
         'CREATE INDEX CONCURRENTLY idempotency_keys_expires_at_idx ON %s (expires_at);'),
        (keys, 'idempotency_keys_open_since_idx', ARRAY['open_since'], false, true,
         'looking for stuck claims reads the whole table',
         'CREATE INDEX CONCURRENTLY idempotency_keys_open_since_idx ON %s (open_since) WHERE open_since IS NOT NULL;')
      ) w(relation, name, columns, is_unique, is_partial, consequence, statement)
  LOOP
    IF NOT found_row.there AND NOT found_row.name_taken THEN
      severity := 'critical';
      finding := format('Index %s of %s is missing: %s.', found_row.name, found_row.relation, found_row.consequence);
      remedy := format(found_row.statement, found_row.relation);
      RETURN NEXT;
    END IF;
    IF found_row.name = 'idempotency_keys_expires_at_idx' THEN
      by_expiry := found_row.there;
    ELSIF found_row.name = 'idempotency_keys_open_since_idx' THEN
      by_age := found_row.there;
    END IF;
  END LOOP;

  -- The rules that keep a result longer than its client retries. First the rows, then the rules that they would break.

  FOR found_row IN
    SELECT e.endpoint, e.ttl, e.retry_window FROM @extschema@.idempotency_endpoints e
     WHERE (e.ttl > e.retry_window AND e.ttl BETWEEN '24 hours' AND '36500 days') IS NOT TRUE
     ORDER BY e.endpoint LIMIT 20
  LOOP
    severity := 'critical';
    finding := format('The ttl of endpoint %s is %s, with a retry window of %s: it must be above it and at least 24 hours.',
                      quote_ident(found_row.endpoint), found_row.ttl, found_row.retry_window);
    remedy := format('UPDATE %s SET ttl = greatest(2 * retry_window, ''24 hours'') WHERE endpoint = %L;',
                     endpoints, found_row.endpoint);
    RETURN NEXT;
  END LOOP;

  FOR found_row IN
    SELECT w.relation, w.name, w.rule
      FROM (VALUES
        (endpoints, 'retry_window_positive', 'CHECK (retry_window > ''0'')'),
        (endpoints, 'ttl_above_retry_window', 'CHECK (ttl > retry_window)'),
        (endpoints, 'ttl_at_least_a_day', 'CHECK (ttl >= ''24 hours'')'),
        (endpoints, 'ttl_at_most_a_century', 'CHECK (ttl <= ''36500 days'')'),
        (keys, 'row_is_well_formed',
         'CHECK (@extschema@.idem_row_is_well_formed(tenant_id, endpoint, key, request_hash, status, attempt, '
         'response_code, completed_at, open_since))')
      ) w(relation, name, rule)
     WHERE NOT EXISTS (SELECT FROM pg_constraint c
                        WHERE c.conrelid = w.relation AND c.conname = w.name AND c.contype = 'c')
  LOOP
    severity := 'critical';
    finding := format('Table %s has lost its rule %s.', found_row.relation, found_row.name);
    remedy := format('ALTER TABLE %s ADD CONSTRAINT %I %s;', found_row.relation, found_row.name, found_row.rule);
    RETURN NEXT;
  END LOOP;

  FOR found_row IN
    SELECT c.conrelid::regclass AS relation, c.conname FROM pg_constraint c
     WHERE c.conrelid IN (keys, endpoints) AND c.contype = 'c' AND NOT c.convalidated
     ORDER BY c.conname
  LOOP
    severity := 'warning';
    finding := format('Rule %s of table %s does not cover the rows that were there before it.',
                      found_row.conname, found_row.relation);
    remedy := format('ALTER TABLE %s VALIDATE CONSTRAINT %I;', found_row.relation, found_row.conname);
    RETURN NEXT;
  END LOOP;

  -- What waits to be done.

  IF by_age THEN
    SELECT count(*) AS n, max(clock_timestamp() - k.open_since) AS longest,
           count(*) FILTER (WHERE k.lease_until > clock_timestamp()) AS leased
      INTO found_row
      FROM @extschema@.idempotency_keys k
      LEFT JOIN @extschema@.idempotency_endpoints e ON e.endpoint = k.endpoint
     WHERE k.open_since IS NOT NULL
       AND k.open_since < clock_timestamp() - coalesce(e.stuck_after, '60 seconds');
    IF found_row.n > 0 THEN
      severity := 'warning';
      finding := format('Stuck claims: %s, the oldest open for %s; reconcilers hold %s of them. Their clients get 409.',
                        found_row.n, date_trunc('second', found_row.longest), found_row.leased);
      remedy := 'SELECT * FROM @extschema@.idem_stuck; -- find out whether each effect happened, then idem_complete, '
                'idem_fail or idem_release with its attempt';
      RETURN NEXT;
    END IF;
  END IF;

  IF by_expiry THEN
    -- What expires between two rounds is no lag.
    settle := greatest(5 * coalesce(nullif(interval_now, '0'), '60 seconds'), '60 seconds');
    SELECT clock_timestamp() - k.expires_at AS lag INTO found_row
      FROM @extschema@.idempotency_keys k
     WHERE k.expires_at <= now() AND k.status <> 'in_progress'
     ORDER BY k.expires_at
     LIMIT 1;
    IF found_row.lag > settle THEN
      severity := 'warning';
      finding := format('The sweep is falling behind: the oldest expired row has been due for %s.',
                        date_trunc('second', found_row.lag));
      remedy := 'SELECT @extschema@.idem_sweep(100000); -- again while that many are deleted; if it keeps falling behind, '
                'raise idempotency_enforcer.sweep_batch_size or lower sweep_interval';
      RETURN NEXT;
    END IF;
  END IF;

  -- The care that PostgreSQL takes of the tables.

  FOR found_row IN
    SELECT s.name FROM pg_settings s
     WHERE s.name IN ('autovacuum', 'track_counts') AND s.setting = 'off' ORDER BY s.name
  LOOP
    severity := 'warning';
    finding := format('%s is off: nothing reclaims the space of swept rows.', found_row.name);
    remedy := format(E'ALTER SYSTEM SET %I = on;\nSELECT pg_reload_conf();', found_row.name);
    RETURN NEXT;
  END LOOP;

  FOR found_row IN
    SELECT CASE WHEN c.oid = keys THEN 'autovacuum_enabled' ELSE 'toast.autovacuum_enabled' END AS option
      FROM pg_class c
     WHERE c.oid IN (keys, (SELECT k.reltoastrelid FROM pg_class k WHERE k.oid = keys))
       AND EXISTS (SELECT FROM pg_options_to_table(c.reloptions) o
                    WHERE o.option_name = 'autovacuum_enabled' AND NOT o.option_value::boolean)
     ORDER BY 1
  LOOP
    severity := 'warning';
    finding := format('%s is off on table %s: nothing reclaims the space of swept rows.', found_row.option, keys);
    remedy := format('ALTER TABLE %s RESET (%s);', keys, found_row.option);
    RETURN NEXT;
  END LOOP;

  SELECT pg_stat_get_dead_tuples(keys) AS dead, pg_stat_get_live_tuples(keys) AS live INTO found_row;
  IF found_row.dead > 10000 + 0.5 * found_row.live THEN
    severity := 'warning';
    finding := format('Dead rows are piling up in %s: %s, beside %s live ones.', keys, found_row.dead, found_row.live);
    remedy := format('VACUUM (ANALYZE) %s; -- if they stay, an old transaction, a prepared one or a replication slot '
                     'keeps them: see pg_stat_activity.backend_xmin, pg_prepared_xacts, pg_replication_slots', keys);
    RETURN NEXT;
  END IF;

  -- Who is in use without being registered: counted, open, or among the last rows to expire. Never the whole table.

  FOR found_row IN
    SELECT u.endpoint, bool_or(u.is_open) AS is_open
      FROM (SELECT c.endpoint, false AS is_open
              FROM @extschema@.idem_counters() c
             WHERE preloaded AND c.kind = 'endpoint' AND c.counters[1] + c.counters[2] > 0
             UNION ALL
            (SELECT k.endpoint, true FROM @extschema@.idempotency_keys k
              WHERE by_age AND k.open_since IS NOT NULL ORDER BY k.open_since LIMIT 1000)
             UNION ALL
            (SELECT k.endpoint, false FROM @extschema@.idempotency_keys k
              WHERE by_expiry ORDER BY k.expires_at DESC LIMIT 1000)) u
     WHERE NOT EXISTS (SELECT FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = u.endpoint)
     GROUP BY u.endpoint
     ORDER BY u.endpoint
     LIMIT 20
  LOOP
    severity := 'info';
    finding := format('Endpoint %s is in use and not registered: no commit guard, and a ttl of 24 hours.',
                      quote_ident(found_row.endpoint));
    remedy := 'SELECT @extschema@.idem_protect' || format('(%L, effect => %L); -- with its retry_window; effect is transaction where '
                     'all of the work is in the claim''s own transaction, else external',
                     found_row.endpoint, CASE WHEN found_row.is_open THEN 'external' ELSE 'transaction' END);
    RETURN NEXT;
  END LOOP;
END;
END
$idem_health$;

COMMENT ON FUNCTION @extschema@.idem_health() IS
  'One row a finding: severity (critical, warning, info), what is wrong, and the statement or setting that mends it. No row when all is well; on a standby only what concerns the standby. Bounded work, whatever the size of the key store.';
