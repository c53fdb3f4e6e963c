-- Nothing for PUBLIC: idem_grant() gives a role what it needs.
--
-- The functions that people call are SQL with bodies that are bound here, by OID: whoever owns the schema may put
-- objects of the same names in their place at any time. What needs GRANT is plpgsql, is handed its objects by OID, and
-- looks up nothing but pg_catalog.
SET LOCAL search_path = pg_catalog, pg_temp;

-- The one table of who may use what.
CREATE FUNCTION @extschema@._idem_rights(kind text)
RETURNS TABLE (is_function boolean, object oid)
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  WITH RECURSIVE named (name, needed_by) AS (
    -- What is not here is for operators, the tables for backups alone.
    VALUES ('idem_claim', 'application'), ('idem_complete', 'application'), ('idem_fail', 'application'),
           ('idem_release', 'application'), ('idem_checkpoint', 'application'),
           ('idem_reconcile', 'reconciler'),
           ('idem_health', 'monitor'), ('idem_metrics', 'monitor'), ('idem_stats', 'monitor'),
           ('idem_stuck', 'monitor'), ('idem_endpoint_summary', 'monitor')),
  included (who, needed_by) AS (
    VALUES ('application', 'application'), ('reconciler', 'application'), ('reconciler', 'reconciler'),
           ('monitor', 'monitor'), ('backup', 'backup'), ('operator', 'application'), ('operator', 'reconciler'),
           ('operator', 'monitor'), ('operator', 'operator')),
  member AS (
    SELECT d.classid, d.objid
      FROM pg_depend d JOIN pg_extension x ON x.oid = d.refobjid
     WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND x.extname = 'idempotency_enforcer'),
  function AS (
    SELECT p.oid, p.proname AS name, p.prosecdef AS as_owner
      FROM member m JOIN pg_proc p ON p.oid = m.objid AND m.classid = 'pg_proc'::regclass),
  relation AS (
    SELECT c.oid, c.relname AS name, c.relkind AS relkind
      FROM member m JOIN pg_class c ON c.oid = m.objid AND m.classid = 'pg_class'::regclass),
  -- What a bound function or a view names: an internal function runs with the rights of whoever calls what calls it,
  -- unless that is a function that runs with its owner's.
  calls (caller, callee) AS (
    SELECT f.oid, d.refobjid
      FROM function f JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = f.oid
     WHERE NOT f.as_owner
    UNION
    SELECT r.ev_class, d.refobjid
      FROM relation v JOIN pg_rewrite r ON r.ev_class = v.oid
      JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = r.oid
     WHERE v.relkind = 'v'),
  reached (object, directly) AS (
    SELECT o.oid, true
      FROM (SELECT f.oid, f.name, 'operator' AS otherwise FROM function f WHERE NOT starts_with(f.name, '_idem_')
            UNION ALL
            SELECT v.oid, v.name, CASE v.relkind WHEN 'v' THEN 'operator' ELSE 'backup' END
              FROM relation v WHERE v.relkind IN ('v', 'r', 'p')) o
      LEFT JOIN named n ON n.name = o.name
      JOIN included i ON i.needed_by = coalesce(n.needed_by, o.otherwise)
     WHERE i.who = _idem_rights.kind
    UNION
    SELECT c.callee, false FROM reached r JOIN calls c ON c.caller = r.object)
  SELECT true, f.oid FROM function f WHERE f.oid IN (SELECT r.object FROM reached r)
  UNION ALL
  SELECT false, v.oid FROM relation v WHERE v.oid IN (SELECT r.object FROM reached r WHERE r.directly);
END;

COMMENT ON FUNCTION @extschema@._idem_rights(text) IS
  'What each kind of role may use: functions, and relations to read.';

CREATE FUNCTION @extschema@._idem_change_rights(
  role name, kind text, is_grant boolean, functions oid[], relations oid[])
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $_idem_change_rights$
DECLARE
  role_oid       oid;
  extension      pg_extension;
  home           name;
  function_list  text;
  relation_list  text;
  direction      text := CASE WHEN is_grant THEN 'TO' ELSE 'FROM' END;
  missed         boolean := false;
BEGIN
  SELECT x.* INTO extension FROM pg_extension x WHERE x.extname = 'idempotency_enforcer';
  SELECT n.nspname INTO home FROM pg_namespace n WHERE n.oid = extension.extnamespace;
  SELECT r.oid INTO role_oid FROM pg_roles r WHERE r.rolname = _idem_change_rights.role;
  IF is_grant AND (kind IS NULL OR kind NOT IN ('backup', 'application', 'reconciler', 'operator', 'monitor')) THEN
    RAISE EXCEPTION 'kind must be backup, application, reconciler or operator'
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It is %s.', coalesce(to_json(kind)::text, 'null')),
            HINT = 'A backup reads the tables; an application claims and finishes; a reconciler also takes over stuck '
                   'claims; an operator may do everything but own and read the tables.';
  END IF;
  IF role_oid IS NULL THEN
    RAISE EXCEPTION 'role % does not exist', coalesce(to_json(_idem_change_rights.role::text)::text, 'null')
      USING ERRCODE = 'undefined_object',
            DETAIL = CASE WHEN is_grant THEN 'Rights are given to a named role, never to PUBLIC.'
                          ELSE 'There is nothing to take away.' END,
            HINT = CASE WHEN is_grant THEN 'CREATE ROLE first, or pass the name as it is in pg_roles.'
                        ELSE 'Pass the name as it is in pg_roles.' END;
  END IF;
  IF NOT is_grant AND role_oid = extension.extowner THEN
    RAISE EXCEPTION 'role % owns the extension', to_json(_idem_change_rights.role::text)
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'Its rights come with ownership, not with a grant.',
            HINT = 'Revoke from the roles that idem_grant() was called for.';
  END IF;
  -- Stored responses are not for operators, and so not for them to give.
  IF kind = 'backup' AND NOT pg_has_role(session_user, extension.extowner, 'MEMBER') THEN
    RAISE EXCEPTION 'only the owner of the extension may let a role read the tables'
      USING ERRCODE = 'insufficient_privilege',
            DETAIL = format('The session''s user is %s; a backup reads every stored response.',
                            to_json(session_user::text)),
            HINT = format('Call it as a superuser, or as %s.', to_json(pg_get_userbyid(extension.extowner)::text));
  END IF;
  IF NOT is_grant THEN
    -- From all that is ours: also what was given without idem_grant().
    SELECT array_agg(d.objid) FILTER (WHERE d.classid = 'pg_proc'::regclass),
           array_agg(d.objid) FILTER (WHERE d.classid = 'pg_class'::regclass)
      INTO functions, relations
      FROM pg_depend d
     WHERE d.refclassid = 'pg_extension'::regclass AND d.refobjid = extension.oid AND d.deptype = 'e';
  END IF;

  -- An owner's rights are his own.
  SELECT string_agg(format('%I.%I(%s)', n.nspname, p.proname, pg_get_function_identity_arguments(p.oid)), ', ')
    INTO function_list
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
   WHERE p.oid = ANY (functions) AND p.proowner <> role_oid;
  SELECT string_agg(format('%I.%I', n.nspname, c.relname), ', ') INTO relation_list
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
   WHERE c.oid = ANY (relations) AND c.relkind IN ('r', 'p', 'v') AND c.relowner <> role_oid;
  BEGIN
    IF is_grant AND kind <> 'monitor' AND NOT EXISTS (
         SELECT FROM pg_namespace n CROSS JOIN LATERAL aclexplode(n.nspacl) a
          WHERE n.oid = extension.extnamespace AND a.grantee = role_oid AND a.privilege_type = 'USAGE') THEN
      EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', home, _idem_change_rights.role);
    END IF;
    IF function_list IS NOT NULL THEN
      EXECUTE format('%s ON FUNCTION %s %s %I', CASE WHEN is_grant THEN 'GRANT EXECUTE' ELSE 'REVOKE ALL' END,
                     function_list, direction, _idem_change_rights.role);
    END IF;
    IF relation_list IS NOT NULL THEN
      EXECUTE format('%s ON TABLE %s %s %I', CASE WHEN is_grant THEN 'GRANT SELECT' ELSE 'REVOKE ALL' END,
                     relation_list, direction, _idem_change_rights.role);
    END IF;
  EXCEPTION WHEN internal_error THEN
    missed := true; -- "tuple concurrently updated": somebody has changed the same row of a catalog
  END;

  -- GRANT goes by name: a schema that was renamed meanwhile has lent its name to other objects.
  IF missed THEN
    NULL;
  ELSIF is_grant THEN
    missed := EXISTS (SELECT FROM unnest(functions) f WHERE has_function_privilege(role_oid, f, 'EXECUTE') IS NOT TRUE)
           OR EXISTS (SELECT FROM unnest(relations) r WHERE has_table_privilege(role_oid, r, 'SELECT') IS NOT TRUE);
  ELSE
    missed := EXISTS (SELECT FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) a
                       WHERE p.oid = ANY (functions) AND a.grantee = role_oid AND p.proowner <> role_oid)
           OR EXISTS (SELECT FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) a
                       WHERE c.oid = ANY (relations) AND a.grantee = role_oid AND c.relowner <> role_oid);
  END IF;
  IF missed THEN
    RAISE EXCEPTION 'the schema of extension idempotency_enforcer has changed under this call'
      USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = 'Not every right could be changed: an object has another name or grantor than a moment before.',
            HINT = 'Nothing was done. Call again; a right that another role than the owner has given is for that role '
                   'to revoke.';
  END IF;
END
$_idem_change_rights$;

COMMENT ON FUNCTION @extschema@._idem_change_rights(name, text, boolean, oid[], oid[]) IS
  'Part of idem_grant() and idem_revoke(): gives a role these rights, or takes away all that it has on the extension''s objects.';

CREATE FUNCTION @extschema@.idem_grant(role name, kind text DEFAULT 'application')
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT @extschema@._idem_hold(true);
  SELECT @extschema@._idem_change_rights(
    idem_grant.role, nullif(idem_grant.kind, 'monitor'), true,
    ARRAY(SELECT r.object FROM @extschema@._idem_rights(idem_grant.kind) r WHERE r.is_function),
    ARRAY(SELECT r.object FROM @extschema@._idem_rights(idem_grant.kind) r WHERE NOT r.is_function));
  SELECT @extschema@._idem_log(format('granted kind %s to role %s', to_json(idem_grant.kind),
                                      to_json(idem_grant.role::text)));
END;

COMMENT ON FUNCTION @extschema@.idem_grant(name, text) IS
  'Gives a role what it needs, with USAGE on the schema: backup (reading the tables, for pg_dump), application (claim, complete, fail, release, checkpoint), reconciler (that and taking over stuck claims) or operator (everything but ownership and the tables). Leaves a line in the log.';

CREATE FUNCTION @extschema@.idem_revoke(role name)
RETURNS void
LANGUAGE sql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
  SELECT @extschema@._idem_hold(true);
  SELECT @extschema@._idem_change_rights(idem_revoke.role, NULL, false, NULL, NULL);
  SELECT @extschema@._idem_log(format('revoked all rights from role %s', to_json(idem_revoke.role::text)));
END;

COMMENT ON FUNCTION @extschema@.idem_revoke(name) IS
  'Takes back everything that idem_grant() gives, but for USAGE on the schema, which may serve other objects. Leaves a line in the log.';

-- Not for PUBLIC, and not for anybody that ALTER DEFAULT PRIVILEGES names: only the owner keeps what he has.
DO $privileges$
DECLARE
  object record;
BEGIN
  FOR object IN
    SELECT pg_catalog.format('FUNCTION %s', p.oid::pg_catalog.regprocedure) AS name, a.grantee
      FROM pg_catalog.pg_proc p
      JOIN pg_catalog.pg_depend d ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass
                                 AND d.objid OPERATOR(pg_catalog.=) p.oid AND d.deptype OPERATOR(pg_catalog.=) 'e'
      JOIN pg_catalog.pg_extension x ON x.oid OPERATOR(pg_catalog.=) d.refobjid
                                    AND x.extname OPERATOR(pg_catalog.=) 'idempotency_enforcer'
     CROSS JOIN LATERAL pg_catalog.aclexplode(coalesce(p.proacl, pg_catalog.acldefault('f', p.proowner))) a
     WHERE a.grantee OPERATOR(pg_catalog.<>) p.proowner
    UNION
    SELECT pg_catalog.format('TABLE %s', c.oid::pg_catalog.regclass), a.grantee
      FROM pg_catalog.pg_class c
      JOIN pg_catalog.pg_depend d ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
                                 AND d.objid OPERATOR(pg_catalog.=) c.oid AND d.deptype OPERATOR(pg_catalog.=) 'e'
      JOIN pg_catalog.pg_extension x ON x.oid OPERATOR(pg_catalog.=) d.refobjid
                                    AND x.extname OPERATOR(pg_catalog.=) 'idempotency_enforcer'
     CROSS JOIN LATERAL pg_catalog.aclexplode(coalesce(c.relacl, pg_catalog.acldefault('r', c.relowner))) a
     WHERE a.grantee OPERATOR(pg_catalog.<>) c.relowner
  LOOP
    EXECUTE pg_catalog.format('REVOKE ALL ON %s FROM %s', object.name,
      CASE WHEN object.grantee OPERATOR(pg_catalog.=) 0::pg_catalog.oid THEN 'PUBLIC'
           ELSE object.grantee::pg_catalog.regrole::pg_catalog.text END);
  END LOOP;
END
$privileges$;

-- Monitoring sees states and counts, but not every stored key. Where the schema is not open to all, it needs USAGE too:
-- that is for whoever owns the schema to give.
SELECT @extschema@._idem_change_rights(
  'pg_monitor'::name, 'monitor'::text, true,
  ARRAY(SELECT r.object FROM @extschema@._idem_rights('monitor') r WHERE r.is_function),
  ARRAY(SELECT r.object FROM @extschema@._idem_rights('monitor') r WHERE NOT r.is_function));
