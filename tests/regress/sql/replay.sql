-- A request, its retries, and what becomes of each.
CREATE EXTENSION idempotency_enforcer;
SELECT idem_protect('POST /payments');
CREATE TABLE ledger (key text, amount integer);
-- The first one executes.
BEGIN;
SELECT outcome, response_code, response_body, attempt FROM idem_claim('acme', 'POST /payments', 'k1', '{"amount": 100}');
INSERT INTO ledger VALUES ('k1', 100);
SELECT idem_complete('acme', 'POST /payments', 'k1', 201, '{"charged":  100}',
                     response_headers => '[["content-type", "application/json"], ["set-cookie", "a"], ["set-cookie", "b"]]');
COMMIT;
-- The second one is answered with the first one's result, and is not an error.
BEGIN;
SELECT outcome, response_code, convert_from(response_body, 'UTF8') AS body, response_headers
  FROM idem_claim('acme', 'POST /payments', 'k1', '{"amount": 100}');
COMMIT;
SELECT * FROM ledger;
-- Another body, no key, a bad key: answers that are ready to send.
SELECT outcome, response_code, convert_from(response_body, 'UTF8')::jsonb ->> 'title' AS title, response_headers
  FROM idem_claim('acme', 'POST /payments', 'k1', '{"amount": 999}');
SELECT outcome, response_code, convert_from(response_body, 'UTF8')::jsonb ->> 'title' AS title
  FROM idem_claim('acme', 'POST /payments', NULL, '{"amount": 100}');
SELECT outcome, response_code, convert_from(response_body, 'UTF8')::jsonb ->> 'title' AS title
  FROM idem_claim('acme', 'POST /payments', E'k\n1', '{"amount": 100}');
-- Another tenant's key is another key; so is another endpoint's.
SELECT idem_protect('POST /refunds');
BEGIN;
SELECT outcome FROM idem_claim('globex', 'POST /payments', 'k1', '{"amount": 100}');
SELECT outcome FROM idem_claim('acme', 'POST /refunds', 'k1', '{"amount": 100}');
ROLLBACK;
-- A claim repeated inside its own transaction is in progress; one that was rolled back never was.
BEGIN;
SELECT outcome FROM idem_claim('acme', 'POST /payments', 'k2', 'body');
SELECT outcome FROM idem_claim('acme', 'POST /payments', 'k2', 'body');
ROLLBACK;
BEGIN;
SELECT outcome FROM idem_claim('acme', 'POST /payments', 'k2', 'body');
-- The work fails for good: the failure is stored.
SAVEPOINT work;
INSERT INTO ledger VALUES ('k2', 1/0);
ROLLBACK TO work;
SELECT idem_fail('acme', 'POST /payments', 'k2', 402, 'declined');
COMMIT;
SELECT outcome, response_code, convert_from(response_body, 'UTF8') AS body
  FROM idem_claim('acme', 'POST /payments', 'k2', 'body');
-- A body is bytes, and none is not the same as an empty one.
BEGIN;
SELECT outcome FROM idem_claim('acme', 'POST /payments', 'k3', '\x00'::bytea);
SELECT idem_complete('acme', 'POST /payments', 'k3', 200, '\x00ff0d0a'::bytea);
SELECT outcome FROM idem_claim('acme', 'POST /payments', 'k4', '\x'::bytea);
SELECT idem_complete('acme', 'POST /payments', 'k4', 200, ''::bytea);
SELECT outcome FROM idem_claim('acme', 'POST /payments', 'k5', ''::text);
SELECT idem_complete('acme', 'POST /payments', 'k5', 204, NULL::bytea);
COMMIT;
SELECT outcome, response_body, response_body IS NULL AS none FROM idem_claim('acme', 'POST /payments', 'k3', '\x00'::bytea);
SELECT outcome, response_body, response_body IS NULL AS none FROM idem_claim('acme', 'POST /payments', 'k4', '\x'::bytea);
SELECT outcome, response_body, response_body IS NULL AS none FROM idem_claim('acme', 'POST /payments', 'k5', '\x'::bytea);
-- The same key and body for another target is another request.
SELECT idem_protect('POST /orders/{id}/refund');
BEGIN;
SELECT outcome FROM idem_claim('acme', 'POST /orders/{id}/refund', 'k6', '', '/orders/1/refund');
SELECT idem_complete('acme', 'POST /orders/{id}/refund', 'k6', 200, 'refunded 1');
COMMIT;
SELECT outcome FROM idem_claim('acme', 'POST /orders/{id}/refund', 'k6', '', '/orders/1/refund');
SELECT outcome FROM idem_claim('acme', 'POST /orders/{id}/refund', 'k6', '', '/orders/2/refund');
-- The effect is known not to have happened: the key may be claimed again, and whoever held it is refused.
SELECT idem_protect('POST /charges', 'external');
SELECT outcome, attempt FROM idem_claim('acme', 'POST /charges', 'k7', 'body');
SELECT idem_release('acme', 'POST /charges', 'k7', 1);
SELECT idem_release('acme', 'POST /charges', 'k7', 1);
SELECT outcome, attempt FROM idem_claim('acme', 'POST /charges', 'k7', 'another');
SELECT idem_release('acme', 'POST /charges', 'k7', 1);
SELECT idem_release('acme', 'POST /charges', 'k7', 2);
-- Where no key is required, a request without one just runs.
SELECT idem_protect('POST /hints', key_required => false);
SELECT outcome, response_code FROM idem_claim('acme', 'POST /hints', '', 'body');
