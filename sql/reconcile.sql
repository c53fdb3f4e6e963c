-- For reconcilers: taking over claims whose owner is gone.

CREATE FUNCTION @extschema@.idem_reconcile(
  max_claims integer DEFAULT 10, lease interval DEFAULT '5 minutes', only_endpoint text DEFAULT NULL)
RETURNS TABLE (
  tenant_id text, endpoint text, key text, provider_key uuid, attempt integer, recovery_point text,
  recovery_state jsonb, open_since timestamptz)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $idem_reconcile$
DECLARE
  -- Where the extension is now: its schema may have been renamed since it was created.
  home regnamespace;
BEGIN
  IF idem_reconcile.max_claims IS NULL OR idem_reconcile.max_claims < 1 THEN
    RAISE EXCEPTION 'max_claims must be 1 or more'
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It is %s.', coalesce(idem_reconcile.max_claims::text, 'null')),
            HINT = 'Pass how many claims this reconciler can settle before the lease runs out.';
  END IF;
  IF idem_reconcile.lease IS NULL OR idem_reconcile.lease <= '0' OR idem_reconcile.lease > '1 day' THEN
    RAISE EXCEPTION 'lease must be above zero and at most a day'
      USING ERRCODE = 'invalid_parameter_value',
            DETAIL = format('It is %s.', coalesce(idem_reconcile.lease::text, 'null')),
            HINT = 'Pass the time in which the claims will be settled; when it has run out, others may take them.';
  END IF;
  SELECT x.extnamespace::regnamespace INTO home FROM pg_extension x WHERE x.extname = 'idempotency_enforcer';
  RETURN QUERY EXECUTE format($statement$
    SELECT c.tenant_id, c.endpoint, c.key, c.provider_key, c.attempt, c.recovery_point, c.recovery_state, c.open_since
      FROM jsonb_to_recordset(%s.idem_hand_out($1, $2, $3)) AS c(
           tenant_id text, endpoint text, key text, provider_key uuid, attempt integer, recovery_point text,
           recovery_state jsonb, open_since timestamptz)$statement$, home)
    USING idem_reconcile.max_claims, idem_reconcile.lease, idem_reconcile.only_endpoint;
END
$idem_reconcile$;

COMMENT ON FUNCTION @extschema@.idem_reconcile(integer, interval, text) IS
  'Hands out up to max_claims stuck claims that nobody has leased, oldest first: raises attempt, so that the old owner is refused (ID003), and sets the lease. COMMIT before acting on them. Find out what happened, then idem_complete, idem_fail or idem_release with that attempt.';
