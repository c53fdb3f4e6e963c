-- What idem_health() finds of the rules that keep a result longer than its client retries, and of the endpoints.
SET LOCAL search_path = pg_catalog, pg_temp;

-- First the rows, then the rules that they would break.
CREATE FUNCTION @extschema@._idem_health_rules(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  -- A result that is forgotten while its client still retries.
  (SELECT 'critical',
          format('The ttl of endpoint %s is %s, with a retry window of %s: it must be above it and at least 24 hours.',
                 to_json(e.endpoint), e.ttl, e.retry_window),
          format('UPDATE %s SET ttl = greatest(2 * retry_window, ''24 hours'') WHERE endpoint = %s;',
                 r.quoted, @extschema@._idem_literal(e.endpoint))
     FROM @extschema@._idem_registry(CASE WHEN @extschema@._idem_tables_are_in_place() THEN true END) e
     JOIN @extschema@._idem_named_relations() r ON r.is_root AND NOT r.is_keys
    WHERE (e.ttl > e.retry_window AND e.ttl BETWEEN '24 hours' AND '36500 days') IS NOT TRUE
    ORDER BY e.endpoint
    LIMIT 20)
  UNION ALL
  -- Rules that were dropped.
  SELECT 'critical', format('Table %s has lost its rule %s.', r.printed, w.name),
         format('ALTER TABLE %s ADD CONSTRAINT %s %s;', r.quoted, w.name,
                CASE WHEN w.rule IS NOT NULL THEN w.rule
                     ELSE (SELECT format('CHECK (%s.idem_row_is_well_formed(tenant_id, endpoint, key, request_hash, '
                                         'status, attempt, response_code, completed_at, open_since))',
                                         @extschema@._idem_identifier(n.nspname::text))
                             FROM pg_extension x JOIN pg_namespace n ON n.oid = x.extnamespace
                            WHERE x.extname = 'idempotency_enforcer') END)
    FROM (VALUES
      (false, 'retry_window_positive', 'CHECK (retry_window > ''0'')'),
      (false, 'ttl_above_retry_window', 'CHECK (ttl > retry_window)'),
      (false, 'ttl_at_least_a_day', 'CHECK (ttl >= ''24 hours'')'),
      (false, 'ttl_at_most_a_century', 'CHECK (ttl <= ''36500 days'')'),
      (false, 'stuck_after_positive', 'CHECK (stuck_after > ''0'')'),
      (false, 'stuck_after_at_most_a_century', 'CHECK (stuck_after <= ''36500 days'')'),
      (true, 'row_is_well_formed', NULL)) w(is_keys, name, rule)
    JOIN @extschema@._idem_named_relations() r ON r.is_root AND r.is_keys = w.is_keys
   WHERE NOT EXISTS (SELECT FROM pg_constraint c
                      WHERE c.conrelid = r.relation AND c.conname = w.name AND c.contype = 'c')
  UNION ALL
  -- Rules that were added without a look at the rows.
  (SELECT 'warning', format('Rule %s of table %s does not cover the rows that were there before it.',
                            to_json(c.conname), r.printed),
          format('ALTER TABLE %s VALIDATE CONSTRAINT %s;', r.quoted, @extschema@._idem_identifier(c.conname::text))
     FROM @extschema@._idem_named_relations() r
     JOIN pg_constraint c ON c.conrelid = r.relation AND c.contype = 'c' AND NOT c.convalidated
    ORDER BY c.conname);
END;

COMMENT ON FUNCTION @extschema@._idem_health_rules() IS
  'Part of idem_health(): the ttl of each endpoint, and the rules that ensure it.';

-- Who is in use without being registered: counted, open, or among the last rows to expire. Never the whole table.
CREATE FUNCTION @extschema@._idem_health_endpoints(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  WITH place AS MATERIALIZED (
    -- NULL, with which nothing is read, where the tables or the indexes for it are not there.
    SELECT CASE WHEN @extschema@._idem_tables_are_in_place() THEN true END AS registry,
           CASE WHEN @extschema@._idem_tables_are_in_place() AND (
             SELECT bool_and(i.is_there) FROM @extschema@._idem_indexes() i)
                THEN true END AS keys),
  registry AS MATERIALIZED (
    SELECT e.endpoint FROM place, @extschema@._idem_registry(place.registry) e),
  used AS (
    SELECT c.endpoint, false AS is_open
      FROM @extschema@._idem_counted() c
      -- Without the registry nothing can be said of who is in it.
      JOIN place ON place.registry AND @extschema@._idem_tables_problem() IS NULL
     WHERE c.kind = 'endpoint' AND c.n[1] + c.n[2] > 0
     UNION ALL
    SELECT u.endpoint, u.has_open_claims FROM place, @extschema@._idem_unregistered_in_use(place.keys) u)
  SELECT 'info',
         format('Endpoint %s is in use and not registered: a new claim is refused, or runs unguarded where '
                'require_registration is off.',
                to_json(u.endpoint)),
         CASE WHEN u.endpoint = '(other endpoints)'
              THEN '-- This name is reserved and cannot be registered: have the application use another one.'
              ELSE format('SELECT %s.idem_protect(%s, effect => %L); -- with its retry_window; effect is transaction '
                          'where all of the work is in the claim''s own transaction, else external',
                          @extschema@._idem_identifier(n.nspname::text), @extschema@._idem_literal(u.endpoint),
                          CASE WHEN bool_or(u.is_open) THEN 'external' ELSE 'transaction' END) END
    FROM used u
    JOIN pg_extension x ON x.extname = 'idempotency_enforcer'
    JOIN pg_namespace n ON n.oid = x.extnamespace
   WHERE NOT EXISTS (SELECT FROM registry r WHERE r.endpoint = u.endpoint)
   GROUP BY u.endpoint, n.nspname
   ORDER BY u.endpoint
   LIMIT 20;
END;

COMMENT ON FUNCTION @extschema@._idem_health_endpoints() IS
  'Part of idem_health(): endpoints that are in use and not registered.';

SET LOCAL search_path = @extschema@, pg_temp;
