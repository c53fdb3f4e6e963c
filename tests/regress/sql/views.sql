-- What operators see, and the sweep.
SELECT tenant_id, endpoint, key, status, code, body FROM idem_keys ORDER BY 1, 2, 3;
SELECT tenant_id, key, attempt, provider_key, resource_ref, open_since IS NOT NULL AS open FROM idem_key_details ORDER BY 1, endpoint, 2;
-- A claim that was committed in progress is stuck once it is older than its endpoint allows.
SELECT idem_protect('POST /shipments', 'external', stuck_after => '1 minute');
SELECT outcome, provider_key FROM idem_claim('acme', 'POST /shipments', 'v1', 'body');
SELECT tenant_id, endpoint, key FROM idem_stuck;
UPDATE idempotency_keys SET open_since = open_since - interval '2 minutes' WHERE key = 'v1';
SELECT tenant_id, endpoint, key, attempt, leased, reached FROM idem_stuck;
-- It is neither run again nor swept, whatever its age; a finished row is swept once it has expired.
UPDATE idempotency_keys SET expires_at = now() - interval '1 day' WHERE key IN ('v1', 'k3', 'k4');
SELECT outcome FROM idem_claim('acme', 'POST /shipments', 'v1', 'body');
SELECT endpoint, effect, retry_window, ttl, open, succeeded, failed, expired FROM idem_endpoint_summary;
SELECT idem_sweep(1);
SELECT idem_sweep();
SELECT idem_sweep();
SELECT endpoint, key, status FROM idem_keys WHERE tenant_id = 'acme' ORDER BY 1, 2;
-- Whoever finds out what happened finishes it.
SELECT idem_complete('acme', 'POST /shipments', 'v1', 200, 'shipped');
SELECT count(*) FROM idem_stuck;
-- All goes with the extension.
DROP EXTENSION idempotency_enforcer;
DROP TABLE ledger;
