-- Programming mistakes: each has a SQLSTATE, a DETAIL and a HINT.
\set SHOW_CONTEXT never
SELECT idem_protect('POST /orders', max_body_bytes => 10);
-- ID001: no claim.
SELECT idem_complete('acme', 'POST /orders', 'e1', 200, 'ok');
\echo :LAST_ERROR_SQLSTATE
-- ID004: the commit guard.
BEGIN;
SELECT outcome FROM idem_claim('acme', 'POST /orders', 'e1', 'body');
COMMIT;
\echo :LAST_ERROR_SQLSTATE
-- ID004, too: released and committed, the effect would have no result.
BEGIN;
SELECT outcome FROM idem_claim('acme', 'POST /orders', 'e1', 'body');
SELECT idem_release('acme', 'POST /orders', 'e1');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- ID005: the response is too large, and there is nothing to rebuild it from.
BEGIN;
SELECT outcome FROM idem_claim('acme', 'POST /orders', 'e1', 'body');
SELECT idem_complete('acme', 'POST /orders', 'e1', 200, '12345678901');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- ID002: finished before, with another result. The same result again is a no-op.
BEGIN;
SELECT outcome FROM idem_claim('acme', 'POST /orders', 'e1', 'body');
SELECT idem_complete('acme', 'POST /orders', 'e1', 200, 'ok');
COMMIT;
SELECT idem_complete('acme', 'POST /orders', 'e1', 200, 'ok');
SELECT idem_complete('acme', 'POST /orders', 'e1', 500, 'no');
\echo :LAST_ERROR_SQLSTATE
-- ID003: another attempt than the one that holds the claim.
BEGIN;
SELECT outcome FROM idem_claim('acme', 'POST /orders', 'e2', 'body');
SELECT idem_complete('acme', 'POST /orders', 'e2', 200, 'ok', attempt => 2);
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- ID006: an endpoint that nobody has registered, unless an administrator lets it through.
SELECT outcome FROM idem_claim('acme', 'POST /order', 'e3', 'body');
\echo :LAST_ERROR_SQLSTATE
BEGIN;
SET LOCAL idempotency_enforcer.require_registration = off;
SELECT outcome, attempt FROM idem_claim('acme', 'POST /order', 'e3', 'body');
ROLLBACK;
-- 25006: a replay reads, a first arrival writes.
BEGIN READ ONLY;
SELECT outcome FROM idem_claim('acme', 'POST /orders', 'e1', 'body');
SELECT outcome FROM idem_claim('acme', 'POST /orders', 'e3', 'body');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
-- 22023: arguments.
SELECT idem_claim(NULL, 'POST /orders', 'e3', 'body');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('acme', '', 'e3', 'body');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('acme', 'POST /orders', 'e3', NULL::bytea, request_hash => '\x00');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('acme', 'POST /orders', 'e3', 'body', wait => '-1 second');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_claim('acme', 'POST /orders', 'e3', 'body', ttl => '1 hour');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('acme', 'POST /orders', 'e3', 99, 'ok');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('acme', 'POST /orders', 'e3', 200, '\x7b7d'::text);
\echo :LAST_ERROR_SQLSTATE
SELECT idem_complete('acme', 'POST /orders', 'e3', 200, repeat('x', 11), resource_ref => repeat('r', 2049));
\echo :LAST_ERROR_SQLSTATE
SELECT outcome FROM idem_claim('acme', 'POST /orders/{id}/refund', 'e3', 'body');
\echo :LAST_ERROR_SQLSTATE
-- The registry keeps the red line.
SELECT idem_protect('POST /orders', retry_window => '48 hours', ttl => '48 hours');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_protect('GET /orders');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_protect('PUT /orders/{id}');
SELECT idem_protect('POST /archives', retry_window => '14 days', ttl => '30 days');
SELECT idem_unprotect('POST /orders');
\echo :LAST_ERROR_SQLSTATE
SELECT idem_unprotect('POST /orders', force => true);
SELECT idem_unprotect('POST /never-seen');
