-- What idem_health() finds of who may do what to the tables: owners, code that runs on them, rights.
SET LOCAL search_path = pg_catalog, pg_temp;

CREATE FUNCTION @extschema@._idem_health_code(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  -- Two owners. The one who owns the extension, if he owns either, else the owner of the keys.
  SELECT 'critical',
         format('The tables have different owners: %s belongs to %s and not to %s.', t.printed,
                to_json(pg_get_userbyid(t.relowner)), to_json(pg_get_userbyid(t.rightful))),
         format('ALTER TABLE %s OWNER TO %s;', t.quoted, @extschema@._idem_identifier(pg_get_userbyid(t.rightful)::text))
    FROM (SELECT r.printed, r.quoted, c.relowner,
                 CASE WHEN bool_or(c.relowner = x.extowner) OVER () THEN x.extowner
                      ELSE first_value(c.relowner) OVER (ORDER BY NOT r.is_keys, NOT r.is_root) END AS rightful
            FROM @extschema@._idem_named_relations() r
            JOIN pg_class c ON c.oid = r.relation
            JOIN pg_extension x ON x.extname = 'idempotency_enforcer') t
   WHERE t.relowner <> t.rightful
  UNION ALL
  -- Code that runs with the owner's rights. A trigger for TRUNCATE alone does not: bits 2, 3 and 4 are INSERT, DELETE,
  -- UPDATE.
  SELECT 'critical',
         format('Trigger %s on table %s runs a function of %s, who is neither its owner nor a superuser.',
                to_json(t.tgname), r.printed, to_json(pg_get_userbyid(p.proowner))),
         format('DROP TRIGGER %s ON %s;', @extschema@._idem_identifier(t.tgname::text), r.quoted)
    FROM @extschema@._idem_named_relations() r
    JOIN pg_class c ON c.oid = r.relation
    JOIN pg_trigger t ON t.tgrelid = r.relation AND t.tgparentid = 0 AND (t.tgtype & 28) <> 0 AND NOT t.tgisinternal
    JOIN pg_proc p ON p.oid = t.tgfoid
   WHERE p.proowner <> c.relowner
     AND NOT EXISTS (SELECT FROM pg_roles o WHERE o.oid = p.proowner AND o.rolsuper)
  UNION ALL
  SELECT 'critical', format('Rule %s on table %s changes what is stored.', to_json(w.rulename), r.printed),
         format('DROP RULE %s ON %s;', @extschema@._idem_identifier(w.rulename::text), r.quoted)
    FROM @extschema@._idem_named_relations() r
    JOIN pg_rewrite w ON w.ev_class = r.relation
  UNION ALL
  -- The sweep cannot delete what another table refers to.
  SELECT 'critical',
         format('Foreign key %s of table %s refers to %s: %s.', to_json(f.conname), o.printed, q.printed,
                CASE WHEN mine.relation IS NULL THEN 'it stops the sweep, or goes with what is swept'
                     ELSE 'claims fail for what is not in there' END),
         format('ALTER TABLE %s DROP CONSTRAINT %s;', o.quoted, @extschema@._idem_identifier(f.conname::text))
    FROM pg_constraint f
    LEFT JOIN @extschema@._idem_relations() mine ON mine.relation = f.conrelid,
         @extschema@._idem_qualified(f.conrelid) o, @extschema@._idem_qualified(f.confrelid) q
   WHERE f.contype = 'f' AND f.conparentid = 0
     AND (mine.relation IS NOT NULL OR f.confrelid IN (SELECT r.relation FROM @extschema@._idem_relations() r))
  UNION ALL
  -- Policies do not bind the owner, who runs the statements, but whoever reads the tables or restores them.
  SELECT 'warning', format('Row-level security is on for table %s: a dump or a reader may miss rows.', r.printed),
         format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY;', r.quoted)
    FROM @extschema@._idem_named_relations() r
    JOIN pg_class c ON c.oid = r.relation
   WHERE c.relrowsecurity OR c.relforcerowsecurity;
END;

COMMENT ON FUNCTION @extschema@._idem_health_code() IS
  'Part of idem_health(): owners of the tables, and code that others have put on them.';

-- Who is named in a right, as GRANT and REVOKE name him.
CREATE FUNCTION @extschema@._idem_grantee(role oid)
RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT CASE role WHEN 0 THEN 'PUBLIC' ELSE @extschema@._idem_identifier(pg_get_userbyid(role)::text) END;
END;

COMMENT ON FUNCTION @extschema@._idem_grantee(oid) IS
  'A role as REVOKE names it.';

CREATE FUNCTION @extschema@._idem_health_rights(OUT severity text, OUT finding text, OUT remedy text)
RETURNS SETOF record
LANGUAGE sql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  -- The tables, and the views, through which whoever may write to one writes to its table.
  WITH guarded AS MATERIALIZED (
    SELECT r.relation, r.quoted, format('table %s', r.printed) AS printed, false AS is_view
      FROM @extschema@._idem_named_relations() r
     UNION ALL
    SELECT c.oid, q.quoted, format('view %s', q.printed), true
      FROM pg_extension x
      JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = x.oid AND d.deptype = 'e'
      JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind = 'v',
           @extschema@._idem_qualified(c.oid) q
     WHERE x.extname = 'idempotency_enforcer')

  -- On all of it: but for a role that may read it and no more, as a backup does.
  SELECT 'critical',
         format('%s has rights on %s beside its owner (%s): who uses them passes the functions by.',
                CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE 'Role ' || to_json(pg_get_userbyid(a.grantee)) END, g.printed,
                string_agg(DISTINCT concat(a.privilege_type, CASE WHEN a.is_grantable THEN ' with grant option' END),
                           ', ')),
         format('REVOKE %s ON TABLE %s FROM %s CASCADE;', string_agg(DISTINCT a.privilege_type, ', '), g.quoted,
                @extschema@._idem_grantee(a.grantee))
    FROM guarded g
    JOIN pg_class c ON c.oid = g.relation,
         aclexplode(c.relacl) a
   WHERE a.grantee <> c.relowner
     AND (a.privilege_type <> 'SELECT' OR NOT g.is_view AND (a.is_grantable OR a.grantee = 0))
   GROUP BY g.printed, g.quoted, a.grantee
  UNION ALL
  -- On its columns.
  SELECT 'critical',
         format('%s has rights on columns of %s: who uses them passes the functions by.',
                CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE 'Role ' || to_json(pg_get_userbyid(a.grantee)) END, g.printed),
         format('REVOKE %s ON TABLE %s FROM %s CASCADE;',
                string_agg(DISTINCT format('%s (%s)', a.privilege_type, @extschema@._idem_identifier(c.attname::text)), ', '),
                g.quoted, @extschema@._idem_grantee(a.grantee))
    FROM guarded g
    JOIN pg_class t ON t.oid = g.relation
    JOIN pg_attribute c ON c.attrelid = g.relation AND NOT c.attisdropped,
         aclexplode(c.attacl) a
   WHERE a.grantee <> t.relowner AND (a.privilege_type <> 'SELECT' OR NOT g.is_view)
   GROUP BY g.printed, g.quoted, a.grantee;
END;

COMMENT ON FUNCTION @extschema@._idem_health_rights() IS
  'Part of idem_health(): rights on the tables of anybody but their owner and who backs them up.';

SET LOCAL search_path = @extschema@, pg_temp;
