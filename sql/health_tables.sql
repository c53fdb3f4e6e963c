-- What idem_health() finds of the tables themselves: what they are, where they are, their indexes.
SET LOCAL search_path = pg_catalog, pg_temp;

-- Where the extension's schema and tables are, and where they were made. The name of the schema at CREATE EXTENSION
-- comes in quotes where it, or quote_all_identifiers, demands them.
CREATE FUNCTION @extschema@._idem_health_places(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  WITH home AS (
    SELECT n.oid, n.nspname AS name,
           CASE WHEN g.name LIKE '"%' THEN replace(substr(g.name, 2, length(g.name) - 2), '""', '"')
                ELSE g.name END AS given
      FROM pg_extension x
      JOIN pg_namespace n ON n.oid = x.extnamespace,
           (VALUES ($name$@extschema@$name$)) g(name)
     WHERE x.extname = 'idempotency_enforcer'),
  tables AS (
    SELECT r.relation, c.relname, c.relnamespace, r.quoted, r.printed, home.oid AS home, home.name AS home_name,
           CASE WHEN r.is_keys THEN 'idempotency_keys' ELSE 'idempotency_endpoints' END AS given
      FROM @extschema@._idem_named_relations() r
      JOIN pg_class c ON c.oid = r.relation, home
     WHERE r.is_root)

  -- Something else has the name of a table of ours.
  SELECT 'critical',
         format('%s is not the extension''s, and is in the place of its table.', q.printed),
         format('ALTER %s %s RENAME TO %s;', CASE WHEN o.relkind = 'c' THEN 'TYPE' ELSE 'TABLE' END, q.quoted,
                @extschema@._idem_identifier(t.given || '_not_ours'::text))
    FROM tables t
    JOIN pg_class o ON o.relname = t.given AND o.relnamespace = t.home AND o.oid <> t.relation,
         @extschema@._idem_qualified(o.oid) q
  UNION ALL
  SELECT 'critical',
         format('Table %s was %s: every function that needs it fails. Its keys are all there.', t.given,
                'renamed to ' || t.printed),
         format('ALTER TABLE %s RENAME TO %s;', t.quoted, t.given)
    FROM tables t
   WHERE t.relname <> t.given
  UNION ALL
  SELECT 'critical',
         format('Table %s is not in the schema of its extension, %s: every function that needs it fails.', t.printed,
                to_json(t.home_name)),
         format('ALTER TABLE %s SET SCHEMA %s;', t.quoted, @extschema@._idem_identifier(t.home_name::text))
    FROM tables t
   WHERE t.relnamespace <> t.home AND t.relname = t.given
  UNION ALL
  SELECT 'critical',
         format('The schema of the extension, %s, was renamed to %s: who calls by the name that he knows fails.',
                to_json(home.given), to_json(home.name)),
         CASE WHEN o.oid IS NULL
              THEN format('ALTER SCHEMA %s RENAME TO %s;', @extschema@._idem_identifier(home.name::text),
                          @extschema@._idem_identifier(home.given::text))
              ELSE format('ALTER SCHEMA %s RENAME TO %s; -- it has taken the name; then look again',
                          @extschema@._idem_identifier(home.given::text),
                          @extschema@._idem_identifier(home.given || '_not_ours'::text))
         END
    FROM home
    LEFT JOIN pg_namespace o ON o.nspname = home.given
   WHERE home.name <> home.given;
END;

COMMENT ON FUNCTION @extschema@._idem_health_places() IS
  'Part of idem_health(): whether the schema and the tables are where they were, under their names.';

-- Whether functions find the tables: otherwise nothing may be read in their place.
CREATE FUNCTION @extschema@._idem_tables_are_in_place()
RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT count(*) = 2
    FROM @extschema@._idem_relations() r
    JOIN pg_class c ON c.oid = r.relation
    JOIN pg_extension x ON x.extname = 'idempotency_enforcer' AND x.extnamespace = c.relnamespace
   WHERE r.is_root AND c.relname = CASE WHEN r.is_keys THEN 'idempotency_keys' ELSE 'idempotency_endpoints' END;
END;

COMMENT ON FUNCTION @extschema@._idem_tables_are_in_place() IS
  'Whether the tables have their names, in the schema of the extension.';

CREATE FUNCTION @extschema@._idem_health_access(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  -- Somebody's lock keeps even readers out; what the tables hold has not been looked at.
  SELECT 'warning',
         format('%s holds a lock on table %s (%s): every call waits for it, and its rows were not looked at.',
                coalesce('Process ' || l.pid, 'A prepared transaction'), r.printed, l.mode),
         coalesce(format('SELECT pg_catalog.pg_terminate_backend(%s); -- or wait for its transaction to end', l.pid),
                  'SELECT * FROM pg_catalog.pg_prepared_xacts; -- ask its transaction manager how it ended')
    FROM @extschema@._idem_named_relations() r
    JOIN pg_locks l ON l.relation = r.relation AND l.locktype = 'relation'
   WHERE l.granted AND l.mode = 'AccessExclusiveLock' AND l.pid IS DISTINCT FROM pg_backend_pid()
     AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  UNION ALL
  -- What every function says that uses the tables.
  SELECT 'critical', format('The tables cannot be used: %s', to_json(p.problem)),
         '-- The other critical findings say why, where it can be seen, and what to do.'
    FROM (SELECT CASE WHEN @extschema@._idem_tables_are_in_place()
                      THEN @extschema@._idem_tables_problem() END AS problem) p
   WHERE p.problem IS NOT NULL;
END;

COMMENT ON FUNCTION @extschema@._idem_health_access() IS
  'Part of idem_health(): whether the tables can be read at all.';

CREATE FUNCTION @extschema@._idem_health_tables(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  -- A crash empties an unlogged table, and a standby has nothing of it.
  SELECT 'critical', format('Table %s is unlogged: a crash empties it, and a standby does not have it.', r.printed),
         format('ALTER TABLE %s SET LOGGED;', r.quoted)
    FROM @extschema@._idem_named_relations() r
    JOIN pg_class c ON c.oid = r.relation
   WHERE c.relpersistence = 'u'
  UNION ALL
  -- The primary key of a table does not see the rows of one that inherits from it.
  SELECT 'critical',
         format('Table %s inherits from %s: a key can be in both, and be executed twice.', q.printed, r.printed),
         format('ALTER TABLE %s NO INHERIT %s;', q.quoted, r.quoted)
    FROM @extschema@._idem_named_relations() r
    JOIN pg_inherits i ON i.inhparent = r.relation
    JOIN pg_class c ON c.oid = i.inhrelid AND NOT c.relispartition,
         @extschema@._idem_qualified(c.oid) q
  UNION ALL
  SELECT 'warning', format('Table %s is a part of %s: who changes that one changes it.', r.printed, q.printed),
         CASE WHEN c.relispartition THEN format('ALTER TABLE %s DETACH PARTITION %s;', q.quoted, r.quoted)
              ELSE format('ALTER TABLE %s NO INHERIT %s;', r.quoted, q.quoted) END
    FROM @extschema@._idem_named_relations() r
    JOIN pg_class c ON c.oid = r.relation
    JOIN pg_inherits i ON i.inhrelid = r.relation,
         @extschema@._idem_qualified(i.inhparent) q
   WHERE r.is_root
  UNION ALL
  -- Citus: the commit of a distributed effect does not wait for that of a local key. A table that Citus distributes has
  -- a trigger of it, truncate_trigger or the like, that is no part of this extension.
  SELECT 'critical',
         format('Citus is installed and table %s is local: a distributed effect may be committed without its key.',
                r.printed),
         -- The schema of the function is not known when this is made: it comes from the catalog.
         format('SELECT %s.idem_distribute(); -- not needed only if no table with effects is distributed',
                @extschema@._idem_identifier(n.nspname::text))
    FROM @extschema@._idem_named_relations() r
    JOIN pg_extension x ON x.extname = 'idempotency_enforcer'
    JOIN pg_namespace n ON n.oid = x.extnamespace
   WHERE r.is_keys AND r.is_root
     AND EXISTS (SELECT FROM pg_extension c WHERE c.extname = 'citus')
     AND NOT EXISTS (SELECT FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid
                      WHERE t.tgrelid = r.relation AND p.proname = 'citus_truncate_trigger');
END;

COMMENT ON FUNCTION @extschema@._idem_health_tables() IS
  'Part of idem_health(): what kind of tables they are.';

-- The indexes that the promises and the statements need.
CREATE FUNCTION @extschema@._idem_indexes(
  OUT name text, OUT is_keys boolean, OUT columns text[], OUT is_unique boolean, OUT consequence text,
  OUT is_there boolean, OUT deferrable_constraint name)
RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  WITH found AS (
    SELECT r.is_keys, i.indexrelid, i.indisunique, i.indimmediate, i.indisvalid AND i.indisready AS is_valid,
           i.indpred IS NOT NULL AS is_partial,
           (SELECT array_agg(a.attname::text ORDER BY k.n)
              FROM unnest(i.indkey::int2[]) WITH ORDINALITY k(attnum, n)
              JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum) AS columns
      FROM @extschema@._idem_relations() r
      JOIN pg_index i ON i.indrelid = r.relation
     WHERE r.is_root)
  SELECT w.name, w.is_keys, w.columns, w.is_unique, w.consequence,
         EXISTS (SELECT FROM found f
                  WHERE f.is_keys = w.is_keys AND f.columns = w.columns AND f.is_valid AND f.indisunique >= w.is_unique
                    AND f.is_partial = (w.name = 'idempotency_keys_open_since_idx') AND f.indimmediate),
         (SELECT c.conname
            FROM found f JOIN pg_constraint c ON c.conindid = f.indexrelid AND c.contype IN ('p', 'u')
           WHERE f.is_keys = w.is_keys AND f.columns = w.columns AND w.is_unique
             AND f.indisunique AND NOT f.indimmediate
           LIMIT 1)
    FROM (VALUES
      ('idempotency_keys_pkey', true, ARRAY['tenant_id', 'endpoint', 'key'], true,
       'nothing but it stops two executions'),
      ('idempotency_endpoints_pkey', false, ARRAY['endpoint'], true, 'an endpoint could have two registrations'),
      ('idempotency_keys_expires_at_idx', true, ARRAY['expires_at'], false, 'every sweep reads the whole table'),
      ('idempotency_keys_open_since_idx', true, ARRAY['open_since'], false,
       'looking for stuck claims reads the whole table')) w(name, is_keys, columns, is_unique, consequence);
END;

COMMENT ON FUNCTION @extschema@._idem_indexes() IS
  'Part of idem_health(): the indexes that must be there, under any name, and whether they are.';

CREATE FUNCTION @extschema@._idem_health_indexes(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  -- Invalid.
  (SELECT 'critical', format('Index %s is invalid.', q.printed),
         format(CASE WHEN c.relname ~ '_cc(new|old)[0-9]*$'
                     THEN 'DROP INDEX %s; -- left by a REINDEX CONCURRENTLY that failed'
                     WHEN c.relkind = 'I' THEN 'REINDEX INDEX %s;'
                     ELSE 'REINDEX INDEX CONCURRENTLY %s;' END, q.quoted)
    FROM @extschema@._idem_relations() r
    JOIN pg_index i ON i.indrelid = r.relation AND NOT (i.indisvalid AND i.indisready)
    JOIN pg_class c ON c.oid = i.indexrelid,
         @extschema@._idem_qualified(c.oid) q
   ORDER BY c.relname)
  UNION ALL
  -- Missing. An invalid one of that name has been reported.
  (SELECT 'critical', format('Index %s of %s is missing: %s.', w.name, r.printed, w.consequence),
         format(CASE WHEN w.is_unique THEN 'ALTER TABLE %1$s ADD PRIMARY KEY (%2$s);'
                     WHEN c.relkind = 'p' THEN 'CREATE INDEX ON %1$s (%2$s)%3$s;'
                     ELSE 'CREATE INDEX CONCURRENTLY ON %1$s (%2$s)%3$s;' END,
                r.quoted, array_to_string(w.columns, ', '),
                CASE w.name WHEN 'idempotency_keys_open_since_idx' THEN ' WHERE open_since IS NOT NULL' END)
    FROM @extschema@._idem_indexes() w
    JOIN @extschema@._idem_named_relations() r ON r.is_root AND r.is_keys = w.is_keys
    JOIN pg_class c ON c.oid = r.relation
   WHERE NOT w.is_there AND w.deferrable_constraint IS NULL
     AND NOT EXISTS (SELECT FROM pg_index i JOIN pg_class n ON n.oid = i.indexrelid
                      WHERE i.indrelid = r.relation AND n.relname = w.name AND NOT (i.indisvalid AND i.indisready))
   ORDER BY NOT w.is_unique, NOT w.is_keys, w.name)
  UNION ALL
  -- Checked too late.
  SELECT 'critical',
         format('The primary key of %s is deferrable: claims fail, or two are made before it is checked.', r.printed),
         format('ALTER TABLE %s DROP CONSTRAINT %s, ADD PRIMARY KEY (%s);', r.quoted,
                @extschema@._idem_identifier(w.deferrable_constraint::text), array_to_string(w.columns, ', '))
    FROM @extschema@._idem_indexes() w
    JOIN @extschema@._idem_named_relations() r ON r.is_root AND r.is_keys = w.is_keys
   WHERE NOT w.is_there AND w.deferrable_constraint IS NOT NULL;
END;

COMMENT ON FUNCTION @extschema@._idem_health_indexes() IS
  'Part of idem_health(): indexes that are missing, invalid or deferrable.';

SET LOCAL search_path = @extschema@, pg_temp;
