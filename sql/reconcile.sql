-- For reconcilers: taking over claims whose owner is gone.

CREATE FUNCTION @extschema@.idem_reconcile(
  max_claims integer DEFAULT 10, lease interval DEFAULT '5 minutes', only_endpoint text DEFAULT NULL)
RETURNS TABLE (
  tenant_id text, endpoint text, key text, provider_key uuid, attempt integer, recovery_point text,
  recovery_state jsonb, open_since timestamptz)
LANGUAGE c VOLATILE PARALLEL UNSAFE AS 'MODULE_PATHNAME', 'idem_reconcile';

COMMENT ON FUNCTION @extschema@.idem_reconcile(integer, interval, text) IS
  'Hands out up to max_claims stuck claims that nobody has leased: endpoints take turns, of one endpoint those never handed out come first, oldest first. Raises attempt, so that the old owner is refused (ID003), and sets the lease. COMMIT before acting on them. Find out what happened, then idem_complete, idem_fail or idem_release with that attempt.';
