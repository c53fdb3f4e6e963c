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
  EXECUTE format('GRANT USAGE ON SCHEMA %s TO %I', '@extschema@'::regnamespace, idem_grant.role);
  FOR object IN
    SELECT * FROM @extschema@.idem_grantable() g
     WHERE array_position(kinds, g.kind) <= array_position(kinds, idem_grant.kind)
  LOOP
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
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles r WHERE r.rolname = idem_revoke.role) THEN
    RAISE EXCEPTION 'role % does not exist', coalesce(quote_ident(idem_revoke.role), 'null')
      USING ERRCODE = 'undefined_object',
            DETAIL = 'There is nothing to take away.',
            HINT = 'Pass the name as it is in pg_roles.';
  END IF;
  FOR object IN SELECT * FROM @extschema@.idem_grantable() LOOP
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

DO $privileges$
DECLARE
  object record;
BEGIN
  FOR object IN SELECT g.privilege FROM @extschema@.idem_grantable() g LOOP
    EXECUTE pg_catalog.format('REVOKE %s FROM PUBLIC', object.privilege);
  END LOOP;
END
$privileges$;

-- Monitoring sees states and counts, but not every stored key.
GRANT USAGE ON SCHEMA @extschema@ TO pg_monitor;
GRANT SELECT ON @extschema@.idem_stuck, @extschema@.idem_endpoint_summary, @extschema@.idem_stats,
  @extschema@.idem_metrics TO pg_monitor;
GRANT EXECUTE ON FUNCTION @extschema@.idem_counters(), @extschema@.idem_is_preloaded(), @extschema@.idem_open_claims(),
  @extschema@.idem_health() TO pg_monitor;
