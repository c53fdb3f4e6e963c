-- Nothing for PUBLIC: idem_grant() gives a role what it needs.

CREATE FUNCTION @extschema@.idem_grant(role name, kind text DEFAULT 'application')
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $idem_grant$
DECLARE
  -- Each kind may do what the ones before it may.
  kinds  text[] := ARRAY['application', 'reconciler', 'operator'];
  object record;
  -- Where the extension is now: its schema may have been renamed since it was created.
  home   regnamespace;
BEGIN
  IF idem_grant.kind IS NULL OR idem_grant.kind <> ALL (kinds) THEN
    RAISE EXCEPTION 'kind must be application, reconciler or operator'
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It is %L.', idem_grant.kind),
            HINT = 'An application claims and finishes; a reconciler also takes over stuck claims; '
                   'an operator may do everything but own.';
  END IF;
  IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = idem_grant.role) THEN
    RAISE EXCEPTION 'role % does not exist', coalesce(quote_ident(idem_grant.role), 'null')
      USING ERRCODE = 'undefined_object',
            DETAIL = 'Rights are given to a named role, never to PUBLIC.',
            HINT = 'CREATE ROLE first, or pass the name as it is in pg_roles.';
  END IF;
  SELECT x.extnamespace::regnamespace INTO home FROM pg_extension x WHERE x.extname = 'idempotency_enforcer';
  EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', home, idem_grant.role);
  FOR object IN EXECUTE format('SELECT * FROM %s.idem_grantable()', home) LOOP
    CONTINUE WHEN array_position(kinds, object.kind) > array_position(kinds, idem_grant.kind);
    EXECUTE format('GRANT %s TO %I', object.privilege, idem_grant.role);
  END LOOP;
END
$idem_grant$;

CREATE FUNCTION @extschema@.idem_revoke(role name)
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $idem_revoke$
DECLARE
  object record;
  home   regnamespace;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = idem_revoke.role) THEN
    RAISE EXCEPTION 'role % does not exist', coalesce(quote_ident(idem_revoke.role), 'null')
      USING ERRCODE = 'undefined_object',
            DETAIL = 'There is nothing to take away.',
            HINT = 'Pass the name as it is in pg_roles.';
  END IF;
  IF EXISTS (SELECT FROM pg_extension x JOIN pg_roles r ON r.oid = x.extowner
              WHERE x.extname = 'idempotency_enforcer' AND r.rolname = idem_revoke.role) THEN
    RAISE EXCEPTION 'role % owns the extension', quote_ident(idem_revoke.role)
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = 'Its rights come with ownership, not with a grant.',
            HINT = 'Revoke from the roles that idem_grant() was called for.';
  END IF;
  SELECT x.extnamespace::regnamespace INTO home FROM pg_extension x WHERE x.extname = 'idempotency_enforcer';
  FOR object IN EXECUTE format('SELECT * FROM %s.idem_grantable()', home) LOOP
    EXECUTE format('REVOKE %s FROM %I', object.privilege, idem_revoke.role);
  END LOOP;
END
$idem_revoke$;

-- What each kind of role needs, as the object part of a GRANT.
CREATE FUNCTION @extschema@.idem_grantable(OUT kind text, OUT privilege text)
RETURNS SETOF record
LANGUAGE sql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $idem_grantable$
  SELECT coalesce(a.kind, 'operator'), format('EXECUTE ON FUNCTION %s', p.oid::regprocedure)
    FROM pg_proc p
    JOIN pg_depend d ON d.classid = 'pg_proc'::regclass AND d.objid = p.oid
                    AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
    JOIN pg_extension x ON x.oid = d.refobjid AND x.extname = 'idempotency_enforcer'
    LEFT JOIN (VALUES ('idem_claim', 'application'), ('idem_complete', 'application'),
                      ('idem_fail', 'application'), ('idem_release', 'application'),
                      ('idem_checkpoint', 'application'), ('idem_reconcile', 'reconciler')) a(name, kind)
           ON a.name = p.proname
  UNION ALL
  SELECT 'operator', format('SELECT ON TABLE %s', c.oid::regclass)
    FROM pg_class c
    JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid
                    AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
    JOIN pg_extension x ON x.oid = d.refobjid AND x.extname = 'idempotency_enforcer'
   WHERE c.relkind = 'v'
$idem_grantable$;

COMMENT ON FUNCTION @extschema@.idem_grant(name, text) IS
  'Gives a role what it needs: application (claim, complete, fail, release, checkpoint), reconciler (that and taking over stuck claims) or operator (everything but ownership), with USAGE on the schema.';
COMMENT ON FUNCTION @extschema@.idem_revoke(name) IS
  'Takes back everything that idem_grant() gives, but for USAGE on the schema, which may serve other objects.';
COMMENT ON FUNCTION @extschema@.idem_grantable() IS
  'What idem_grant() gives to each kind of role.';

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
GRANT SELECT ON @extschema@.idem_stuck, @extschema@.idem_endpoint_summary, @extschema@.idem_stats,
  @extschema@.idem_metrics TO pg_monitor;
GRANT EXECUTE ON FUNCTION @extschema@.idem_counters(), @extschema@.idem_is_preloaded(), @extschema@.idem_health(),
  @extschema@.idem_count_open_claims(), @extschema@._idem_open_claims(boolean), @extschema@._idem_sweep_lag(boolean),
  @extschema@._idem_counted(), @extschema@._idem_endpoint_label(text), @extschema@._idem_relations() TO pg_monitor;
