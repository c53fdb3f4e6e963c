-- For reconcilers: taking over claims whose owner is gone.

CREATE FUNCTION @extschema@.idem_reconcile(
  max_claims integer DEFAULT 10, lease interval DEFAULT '5 minutes', only_endpoint text DEFAULT NULL)
RETURNS TABLE (
  tenant_id text, endpoint text, key text, provider_key uuid, attempt integer, recovery_point text,
  recovery_state jsonb, open_since timestamptz)
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
-- However small the table was when this was planned, only the index of open claims is read.
SET enable_seqscan = off
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
    WITH stuck AS MATERIALIZED (
      SELECT k.tenant_id, k.endpoint, k.key
        FROM %1$s.idempotency_keys k
        LEFT JOIN %1$s.idempotency_endpoints e ON e.endpoint = k.endpoint
       WHERE k.open_since IS NOT NULL
         AND k.open_since < clock_timestamp() - coalesce(e.stuck_after, '60 seconds')
         AND (k.lease_until IS NULL OR k.lease_until <= clock_timestamp())
         AND ($3 IS NULL OR k.endpoint = $3)
       ORDER BY k.open_since
       LIMIT $1
         FOR UPDATE OF k SKIP LOCKED),
    taken AS (
      UPDATE %1$s.idempotency_keys k
         SET attempt = k.attempt + 1, lease_until = clock_timestamp() + $2
        FROM stuck s
       WHERE k.tenant_id = s.tenant_id AND k.endpoint = s.endpoint AND k.key = s.key
      RETURNING k.tenant_id, k.endpoint, k.key, k.provider_key, k.attempt, k.recovery_point, k.recovery_state,
                k.open_since)
    SELECT t.tenant_id, t.endpoint, t.key, t.provider_key, t.attempt, t.recovery_point, t.recovery_state, t.open_since
      FROM taken t
     ORDER BY t.open_since, t.tenant_id, t.endpoint, t.key$statement$, home)
    USING idem_reconcile.max_claims, idem_reconcile.lease, idem_reconcile.only_endpoint;
END
$idem_reconcile$;

COMMENT ON FUNCTION @extschema@.idem_reconcile(integer, interval, text) IS
  'Hands out up to max_claims stuck claims that nobody has leased, oldest first: raises attempt, so that the old owner is refused (ID003), and sets the lease. Find out what happened, then idem_complete, idem_fail or idem_release with that attempt.';
