-- The views: the stable surface. Sizes instead of hashes and bodies, times to the second; but for idem_key_details
-- their columns fit a terminal of 120 characters.

CREATE VIEW @extschema@.idem_keys AS
SELECT k.tenant_id,
       k.endpoint,
       k.key,
       k.status,
       k.response_code AS code,
       pg_catalog.octet_length(k.response_body) AS body,
       pg_catalog.make_interval(secs => pg_catalog.floor(
         extract(epoch FROM pg_catalog.now() OPERATOR(pg_catalog.-) k.created_at))::double precision) AS age,
       CASE WHEN k.status OPERATOR(pg_catalog.<>) 'in_progress' AND pg_catalog.isfinite(k.expires_at) THEN
         pg_catalog.make_interval(secs => greatest(0, pg_catalog.floor(
           extract(epoch FROM k.expires_at OPERATOR(pg_catalog.-) pg_catalog.now()))::double precision)) END AS ttl
  FROM @extschema@.idempotency_keys k;

COMMENT ON VIEW @extschema@.idem_keys IS 'Every stored key, without hashes and bodies.';
COMMENT ON COLUMN @extschema@.idem_keys.tenant_id IS 'Tenant or account.';
COMMENT ON COLUMN @extschema@.idem_keys.endpoint IS 'By convention METHOD /route/template.';
COMMENT ON COLUMN @extschema@.idem_keys.key IS 'The client''s Idempotency-Key.';
COMMENT ON COLUMN @extschema@.idem_keys.status IS 'in_progress, succeeded, failed or released.';
COMMENT ON COLUMN @extschema@.idem_keys.code IS 'The stored HTTP status.';
COMMENT ON COLUMN @extschema@.idem_keys.body IS 'Bytes of the stored body; NULL: none.';
COMMENT ON COLUMN @extschema@.idem_keys.age IS 'Time since the first attempt.';
COMMENT ON COLUMN @extschema@.idem_keys.ttl IS 'Time left until a finished or released row expires; zero: due for the sweep. NULL: it never does, as a row in progress.';

-- Wide, for \x: what idem_keys leaves out.
CREATE VIEW @extschema@.idem_key_details AS
SELECT k.tenant_id,
       k.endpoint,
       k.key,
       k.status,
       k.attempt,
       k.provider_key,
       k.resource_ref,
       k.recovery_point,
       k.recovery_state,
       k.open_since,
       k.lease_until,
       k.created_at,
       k.completed_at,
       k.erased_at,
       k.expires_at
  FROM @extschema@.idempotency_keys k;

COMMENT ON VIEW @extschema@.idem_key_details IS
  'Every stored key with all that is known of it but hashes and bodies. Best read in psql''s expanded display (\x).';
COMMENT ON COLUMN @extschema@.idem_key_details.tenant_id IS 'Tenant or account.';
COMMENT ON COLUMN @extschema@.idem_key_details.endpoint IS 'By convention METHOD /route/template.';
COMMENT ON COLUMN @extschema@.idem_key_details.key IS 'The client''s Idempotency-Key.';
COMMENT ON COLUMN @extschema@.idem_key_details.status IS 'in_progress, succeeded, failed or released.';
COMMENT ON COLUMN @extschema@.idem_key_details.attempt IS
  'Fencing number: pass it to idem_complete, idem_fail or idem_release.';
COMMENT ON COLUMN @extschema@.idem_key_details.provider_key IS
  'The key that the provider was given: ask it by this what happened.';
COMMENT ON COLUMN @extschema@.idem_key_details.resource_ref IS
  'What to rebuild the response from, when its body is too large to store.';
COMMENT ON COLUMN @extschema@.idem_key_details.recovery_point IS 'The last committed step.';
COMMENT ON COLUMN @extschema@.idem_key_details.recovery_state IS 'What was stored with it.';
COMMENT ON COLUMN @extschema@.idem_key_details.open_since IS 'When an open claim was made; NULL: it is not open.';
COMMENT ON COLUMN @extschema@.idem_key_details.lease_until IS 'Until when a reconciler holds it.';
COMMENT ON COLUMN @extschema@.idem_key_details.created_at IS 'Start of the transaction of the first attempt.';
COMMENT ON COLUMN @extschema@.idem_key_details.completed_at IS 'When the result was stored.';
COMMENT ON COLUMN @extschema@.idem_key_details.erased_at IS 'When idem_erase() blanked the stored answer.';
COMMENT ON COLUMN @extschema@.idem_key_details.expires_at IS
  'Retention end of a finished or released row. A row in progress never expires.';

CREATE VIEW @extschema@.idem_stuck WITH (security_barrier) AS
SELECT k.tenant_id,
       k.endpoint,
       k.key,
       k.attempt,
       pg_catalog.date_trunc('second', pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) k.open_since) AS open_for,
       k.lease_until OPERATOR(pg_catalog.>) pg_catalog.statement_timestamp() IS TRUE AS leased,
       k.recovery_point AS reached
  FROM @extschema@.idempotency_keys k
  LEFT JOIN @extschema@.idempotency_endpoints e ON e.endpoint OPERATOR(pg_catalog.=) k.endpoint
 WHERE k.open_since IS NOT NULL
   AND k.open_since OPERATOR(pg_catalog.<)
       (pg_catalog.statement_timestamp() OPERATOR(pg_catalog.-) coalesce(e.stuck_after, '60 seconds'::interval))
 ORDER BY k.open_since;

COMMENT ON VIEW @extschema@.idem_stuck IS
  'Open claims older than their endpoint''s stuck_after (60 seconds where it is not registered), oldest first. Nobody re-runs them: find out what happened, then idem_complete, idem_fail or idem_release.';
COMMENT ON COLUMN @extschema@.idem_stuck.tenant_id IS 'Tenant or account.';
COMMENT ON COLUMN @extschema@.idem_stuck.endpoint IS 'By convention METHOD /route/template.';
COMMENT ON COLUMN @extschema@.idem_stuck.key IS 'The client''s Idempotency-Key.';
COMMENT ON COLUMN @extschema@.idem_stuck.attempt IS 'Fencing number: pass it to idem_complete, idem_fail or idem_release.';
COMMENT ON COLUMN @extschema@.idem_stuck.open_for IS 'Time since it was claimed.';
COMMENT ON COLUMN @extschema@.idem_stuck.leased IS 'A reconciler holds it.';
COMMENT ON COLUMN @extschema@.idem_stuck.reached IS 'The last committed recovery point.';

CREATE VIEW @extschema@.idem_endpoint_summary WITH (security_barrier) AS
SELECT coalesce(e.endpoint, k.endpoint) AS endpoint,
       coalesce(e.effect, 'unregistered') AS effect,
       e.retry_window,
       coalesce(e.ttl, '24 hours') AS ttl,
       coalesce(k.in_progress, 0) AS open,
       coalesce(k.succeeded, 0) AS succeeded,
       coalesce(k.failed, 0) AS failed,
       coalesce(k.expired, 0) AS expired,
       k.oldest
  FROM @extschema@.idempotency_endpoints e
  FULL JOIN (
       SELECT r.endpoint,
              pg_catalog.count(*) FILTER (WHERE r.status OPERATOR(pg_catalog.=) 'in_progress') AS in_progress,
              pg_catalog.count(*) FILTER (WHERE r.status OPERATOR(pg_catalog.=) 'succeeded') AS succeeded,
              pg_catalog.count(*) FILTER (WHERE r.status OPERATOR(pg_catalog.=) 'failed') AS failed,
              pg_catalog.count(*) FILTER (
                WHERE r.status OPERATOR(pg_catalog.<>) 'in_progress'
                  AND r.expires_at OPERATOR(pg_catalog.<=) pg_catalog.now()) AS expired,
              pg_catalog.date_trunc('second',
                pg_catalog.now() OPERATOR(pg_catalog.-) pg_catalog.min(r.created_at)) AS oldest
         FROM @extschema@.idempotency_keys r
        GROUP BY r.endpoint) k ON k.endpoint OPERATOR(pg_catalog.=) e.endpoint
 ORDER BY 1;

COMMENT ON VIEW @extschema@.idem_endpoint_summary IS
  'One row an endpoint, registered or in use, with its rules and what is stored for it. Reads the whole key store.';
COMMENT ON COLUMN @extschema@.idem_endpoint_summary.endpoint IS 'By convention METHOD /route/template.';
COMMENT ON COLUMN @extschema@.idem_endpoint_summary.effect IS 'transaction, external or unregistered.';
COMMENT ON COLUMN @extschema@.idem_endpoint_summary.retry_window IS 'How long a client may retry.';
COMMENT ON COLUMN @extschema@.idem_endpoint_summary.ttl IS 'How long a result is kept.';
COMMENT ON COLUMN @extschema@.idem_endpoint_summary.open IS 'Claims in progress.';
COMMENT ON COLUMN @extschema@.idem_endpoint_summary.succeeded IS 'Stored successes, expired ones included.';
COMMENT ON COLUMN @extschema@.idem_endpoint_summary.failed IS 'Stored failures, expired ones included.';
COMMENT ON COLUMN @extschema@.idem_endpoint_summary.expired IS 'Rows that the sweep will delete, tombstones included.';
COMMENT ON COLUMN @extschema@.idem_endpoint_summary.oldest IS 'Age of the oldest row.';
