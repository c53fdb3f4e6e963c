-- What idem_health() finds of what waits to be done: by a person, by the worker, by PostgreSQL.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE FUNCTION @extschema@._idem_health_backlog(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  WITH place AS MATERIALIZED (
    -- NULL, with which nothing is read, where the tables or the index for it are not there.
    SELECT @extschema@._idem_identifier(n.nspname::text) AS home,
           CASE WHEN @extschema@._idem_tables_are_in_place() AND (
             SELECT i.is_there FROM @extschema@._idem_indexes() i WHERE i.name = 'idempotency_keys_open_since_idx')
                THEN true END AS by_age,
           CASE WHEN @extschema@._idem_tables_are_in_place() AND (
             SELECT i.is_there FROM @extschema@._idem_indexes() i WHERE i.name = 'idempotency_keys_expires_at_idx')
                THEN true END AS by_expiry
      FROM pg_extension x
      JOIN pg_namespace n ON n.oid = x.extnamespace
     WHERE x.extname = 'idempotency_enforcer')

  -- For a person.
  SELECT 'warning',
         format('Stuck claims: %s, the oldest open for %s; reconcilers hold %s of them. Their clients get 409.',
                s.stuck, CASE WHEN isfinite(s.oldest) THEN date_trunc('second', statement_timestamp() - s.oldest)::text
                              ELSE 'ever' END, s.leased),
         format('SELECT * FROM %s.idem_stuck; -- find out whether each effect happened, then idem_complete, '
                'idem_fail or idem_release with its attempt', s.home)
    FROM (SELECT place.home, sum(c.stuck) AS stuck, sum(c.leased) AS leased,
                 min(c.oldest) FILTER (WHERE c.stuck > 0) AS oldest
            FROM place, @extschema@._idem_open_claims(place.by_age) c
           GROUP BY place.home) s
   WHERE s.stuck > 0
  UNION ALL
  -- For the worker. What expires between two rounds is no lag.
  SELECT 'warning',
         format('The sweep is falling behind: the oldest expired row has been due for %s.',
                date_trunc('second', s.lag)),
         format('SELECT %s.idem_sweep(100000); -- again while that many are deleted; if it keeps falling behind, raise '
                'idempotency_enforcer.sweep_batch_size or lower sweep_interval', s.home)
    FROM (SELECT place.home, @extschema@._idem_sweep_lag(place.by_expiry) AS lag,
                 nullif(current_setting('idempotency_enforcer.sweep_interval', true)::interval, '0') AS every
            FROM place) s
   WHERE s.lag > greatest(5 * coalesce(s.every, '60 seconds'), '60 seconds')
  UNION ALL
  -- For whoever prepared it: its keys are open until then, whatever their ttl.
  SELECT 'warning',
         format('Prepared transaction %s has used the tables and waits since %s: its keys are neither stored nor free.',
                to_json(p.gid), date_trunc('second', p.prepared)),
         format('SELECT * FROM pg_catalog.pg_prepared_xacts WHERE gid = %s; -- ask its transaction manager how it '
                'ended, then COMMIT PREPARED or ROLLBACK PREPARED', @extschema@._idem_literal(p.gid))
    FROM pg_prepared_xacts p
   WHERE p.database = current_database() AND p.prepared < clock_timestamp() - interval '1 hour'
     -- What it holds is found by its lock on itself: its locks keep the virtual transaction of the session that
     -- prepared it, or get another after a restart.
     AND EXISTS (SELECT FROM pg_locks x
                   JOIN pg_locks l ON l.virtualtransaction = x.virtualtransaction AND l.pid IS NULL
                   JOIN @extschema@._idem_relations() r ON r.relation = l.relation
                  WHERE x.locktype = 'transactionid' AND x.transactionid = p.transaction AND x.pid IS NULL
                    AND l.locktype = 'relation'
                    AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()));
END;

COMMENT ON FUNCTION @extschema@._idem_health_backlog() IS
  'Part of idem_health(): stuck claims, expired rows, forgotten prepared transactions.';

CREATE FUNCTION @extschema@._idem_health_replication(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  -- A take-over at the publisher must find the row here.
  SELECT CASE WHEN s.subenabled THEN 'info' ELSE 'warning' END,
         format('Table %s is fed by the subscription %s%s: its rows are not swept here.', r.printed, to_json(s.subname),
                CASE WHEN s.subenabled THEN '' ELSE ', which is disabled' END),
         CASE WHEN s.subenabled THEN '-- Nothing to do while the publisher is in use.'
              ELSE format('DROP SUBSCRIPTION %s; -- once this server has taken over; where the publisher is gone, '
                          'first ALTER SUBSCRIPTION with SET (slot_name = NONE)',
                          @extschema@._idem_identifier(s.subname::text)) END
    FROM @extschema@._idem_named_relations() r
    JOIN pg_subscription_rel f ON f.srrelid = r.relation
    JOIN pg_subscription s ON s.oid = f.srsubid;
END;

COMMENT ON FUNCTION @extschema@._idem_health_replication() IS
  'Part of idem_health(): subscriptions that feed the tables.';

CREATE FUNCTION @extschema@._idem_health_care(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  -- Autovacuum is off for all tables.
  (SELECT 'warning', format('%s is off: nothing reclaims the space of swept rows.', s.name),
          format('ALTER SYSTEM SET %s = on; -- then SELECT pg_reload_conf();', s.name)
     FROM pg_settings s
    WHERE s.name IN ('autovacuum', 'track_counts') AND s.setting = 'off'
    ORDER BY s.name)
  UNION ALL
  -- Or for this one. An option is read as a boolean only where it is one.
  (SELECT 'warning', format('%s is off on table %s: nothing reclaims the space of swept rows.', o.name, r.printed),
          format('ALTER TABLE %s RESET (%s);', r.quoted, o.name)
     FROM @extschema@._idem_named_relations() r
     JOIN pg_class c ON c.oid = r.relation
     LEFT JOIN pg_class t ON t.oid = c.reltoastrelid,
          (VALUES ('autovacuum_enabled', false), ('toast.autovacuum_enabled', true)) o(name, of_toast)
    WHERE r.is_keys
      AND EXISTS (SELECT FROM pg_options_to_table(CASE WHEN o.of_toast THEN t.reloptions ELSE c.reloptions END) s
                   WHERE CASE s.option_name WHEN 'autovacuum_enabled' THEN NOT s.option_value::boolean END)
    ORDER BY r.quoted, o.name)
  UNION ALL
  -- Dead rows.
  SELECT 'warning', format('Dead rows are piling up in %s: %s, beside %s live ones.', d.printed, d.dead, d.live),
         format('VACUUM (ANALYZE) %s; -- if they stay, an old transaction, a prepared one or a replication slot keeps '
                'them: see pg_stat_activity.backend_xmin, pg_prepared_xacts, pg_replication_slots', d.quoted)
    FROM (SELECT r.printed, r.quoted, pg_stat_get_dead_tuples(r.relation) AS dead,
                 pg_stat_get_live_tuples(r.relation) AS live
            FROM @extschema@._idem_named_relations() r
           WHERE r.is_keys) d
   WHERE d.dead > 10000 + 0.5 * d.live;
END;

COMMENT ON FUNCTION @extschema@._idem_health_care() IS
  'Part of idem_health(): the care that PostgreSQL takes of the tables.';

SET LOCAL search_path = @extschema@, pg_temp;
