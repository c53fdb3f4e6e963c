-- The protected endpoints: the inputs of a design.
CREATE TABLE @extschema@.idempotency_endpoints (
  endpoint                text COLLATE pg_catalog."C" NOT NULL,
  effect                  text COLLATE pg_catalog."C" NOT NULL DEFAULT 'transaction',
  key_required            boolean NOT NULL DEFAULT true,
  retry_window            interval NOT NULL DEFAULT '24 hours',
  ttl                     interval NOT NULL DEFAULT '48 hours',
  stuck_after             interval NOT NULL DEFAULT '60 seconds',
  max_body_bytes          integer,
  expected_writes_per_day bigint,
  guesses                 text[] NOT NULL DEFAULT '{}',
  notes                   text,
  created_at              timestamptz NOT NULL DEFAULT pg_catalog.now(),
  CONSTRAINT idempotency_endpoints_pkey PRIMARY KEY (endpoint),
  CONSTRAINT endpoint_length CHECK (
    pg_catalog.octet_length(endpoint) OPERATOR(pg_catalog.>=) 1
    AND pg_catalog.octet_length(endpoint) OPERATOR(pg_catalog.<=) 255),
  CONSTRAINT endpoint_not_reserved CHECK (endpoint OPERATOR(pg_catalog.<>) '(other endpoints)'),
  CONSTRAINT effect_known CHECK (effect OPERATOR(pg_catalog.=) ANY (ARRAY['transaction', 'external'])),
  CONSTRAINT retry_window_positive CHECK (retry_window OPERATOR(pg_catalog.>) '0'),
  -- The red line: a result must not be forgotten while its client still retries.
  CONSTRAINT ttl_above_retry_window CHECK (ttl OPERATOR(pg_catalog.>) retry_window),
  CONSTRAINT ttl_at_least_a_day CHECK (ttl OPERATOR(pg_catalog.>=) '24 hours'),
  CONSTRAINT ttl_at_most_a_century CHECK (ttl OPERATOR(pg_catalog.<=) '36500 days'),
  CONSTRAINT stuck_after_positive CHECK (stuck_after OPERATOR(pg_catalog.>) '0'),
  CONSTRAINT stuck_after_at_most_a_century CHECK (stuck_after OPERATOR(pg_catalog.<=) '36500 days'),
  CONSTRAINT max_body_bytes_not_negative CHECK (max_body_bytes OPERATOR(pg_catalog.>=) 0),
  CONSTRAINT expected_writes_not_negative CHECK (expected_writes_per_day OPERATOR(pg_catalog.>=) 0)
);

COMMENT ON TABLE @extschema@.idempotency_endpoints IS
  'The protected endpoints and what was decided about each. Written by idem_protect() and idem_unprotect().';
COMMENT ON COLUMN @extschema@.idempotency_endpoints.endpoint IS 'By convention METHOD /route/template.';
COMMENT ON COLUMN @extschema@.idempotency_endpoints.effect IS
  'transaction: the effect is in the claim''s own transaction. external: it is outside of the database.';
COMMENT ON COLUMN @extschema@.idempotency_endpoints.key_required IS
  'A request without a key is refused (true) or runs unprotected (false).';
COMMENT ON COLUMN @extschema@.idempotency_endpoints.retry_window IS 'How long a client may retry after its first attempt.';
COMMENT ON COLUMN @extschema@.idempotency_endpoints.ttl IS
  'How long a result is kept: above the retry window and at least 24 hours.';
COMMENT ON COLUMN @extschema@.idempotency_endpoints.stuck_after IS
  'The slowest legitimate operation: an open claim older than this is reported.';
COMMENT ON COLUMN @extschema@.idempotency_endpoints.max_body_bytes IS
  'Largest response body stored; NULL: idempotency_enforcer.max_body_bytes.';
COMMENT ON COLUMN @extschema@.idempotency_endpoints.expected_writes_per_day IS 'For sizing the key store.';
COMMENT ON COLUMN @extschema@.idempotency_endpoints.guesses IS 'Names of the columns whose values are guesses.';
COMMENT ON COLUMN @extschema@.idempotency_endpoints.notes IS 'For people.';
COMMENT ON COLUMN @extschema@.idempotency_endpoints.created_at IS 'When the endpoint was first registered.';

CREATE FUNCTION @extschema@.idem_row_is_well_formed(
  tenant_id text, endpoint text, key text, request_hash bytea, status text, attempt integer,
  response_code integer, completed_at timestamptz, open_since timestamptz, lease_until timestamptz,
  created_at timestamptz, erased_at timestamptz, expires_at timestamptz)
RETURNS boolean
LANGUAGE c IMMUTABLE PARALLEL SAFE AS 'MODULE_PATHNAME', 'idem_row_is_well_formed';

COMMENT ON FUNCTION @extschema@.idem_row_is_well_formed(
  text, text, text, bytea, text, integer, integer, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz,
  timestamptz) IS
  'The constraint on idempotency_keys: tenant_id at most 255 bytes, endpoint 1 to 255 bytes, key 1 to 255 characters, request_hash 32 bytes, attempt 1 to a billion; a response code of 100 to 599 and a completion time if and only if there is a result; open and leased only while in progress; every time between the years 1970 and 2999.';

-- One row a (tenant, endpoint, key). The primary key wins the race between two arrivals.
--
-- Fixed-size columns that an update in place changes stay out of every index and index predicate, so that
-- completing a claim in its own transaction is a HOT update; the free space of each page is for that update.
CREATE TABLE @extschema@.idempotency_keys (
  tenant_id        text COLLATE pg_catalog."C" NOT NULL,
  endpoint         text COLLATE pg_catalog."C" NOT NULL,
  key              text COLLATE pg_catalog."C" NOT NULL,
  request_hash     bytea NOT NULL,
  status           text COLLATE pg_catalog."C" NOT NULL DEFAULT 'in_progress',
  attempt          integer NOT NULL DEFAULT 1,
  response_code    integer,
  response_headers jsonb,
  response_body    bytea,
  resource_ref     text,
  provider_key     uuid,
  recovery_point   text,
  recovery_state   jsonb,
  open_since       timestamptz,
  lease_until      timestamptz,
  created_at       timestamptz NOT NULL DEFAULT pg_catalog.now(),
  completed_at     timestamptz,
  erased_at        timestamptz,
  expires_at       timestamptz NOT NULL
                   DEFAULT (pg_catalog.now() OPERATOR(pg_catalog.+) '24 hours'::interval),
  CONSTRAINT idempotency_keys_pkey PRIMARY KEY (tenant_id, endpoint, key),
  -- Lengths, the hash, the status and what belongs to it: see idem_row_is_well_formed().
  CONSTRAINT row_is_well_formed CHECK (@extschema@.idem_row_is_well_formed(
    tenant_id, endpoint, key, request_hash, status, attempt, response_code, completed_at, open_since, lease_until,
    created_at, erased_at, expires_at))
) WITH (
  fillfactor = 70,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_analyze_scale_factor = 0.05
);

-- Nothing of what was stored for a client is copied into pg_statistic; no plan depends on it.
ALTER TABLE @extschema@.idempotency_keys
  ALTER COLUMN key SET STATISTICS 0,
  ALTER COLUMN request_hash SET STATISTICS 0,
  ALTER COLUMN response_headers SET STATISTICS 0,
  ALTER COLUMN response_body SET STATISTICS 0,
  ALTER COLUMN resource_ref SET STATISTICS 0,
  ALTER COLUMN provider_key SET STATISTICS 0,
  ALTER COLUMN recovery_point SET STATISTICS 0,
  ALTER COLUMN recovery_state SET STATISTICS 0;

-- For the sweep, in expiry order.
CREATE INDEX idempotency_keys_expires_at_idx ON @extschema@.idempotency_keys (expires_at);
-- Open claims only: however many rows are finished, the stuck ones are found in milliseconds.
CREATE INDEX idempotency_keys_open_since_idx ON @extschema@.idempotency_keys (open_since)
  WHERE open_since IS NOT NULL;

COMMENT ON TABLE @extschema@.idempotency_keys IS
  'The key store: one row a (tenant, endpoint, key). Its columns may change between versions; query the views.';
COMMENT ON COLUMN @extschema@.idempotency_keys.tenant_id IS 'Tenant or account.';
COMMENT ON COLUMN @extschema@.idempotency_keys.endpoint IS 'By convention METHOD /route/template.';
COMMENT ON COLUMN @extschema@.idempotency_keys.key IS 'The client''s Idempotency-Key.';
COMMENT ON COLUMN @extschema@.idempotency_keys.request_hash IS
  'The request''s fingerprint: SHA-256 of the body, or SHA-256(SHA-256(target) || SHA-256(body)) with a request_target.';
COMMENT ON COLUMN @extschema@.idempotency_keys.status IS
  'in_progress, succeeded, failed, or released: a tombstone, which keeps the attempt of a claim that was given up.';
COMMENT ON COLUMN @extschema@.idempotency_keys.attempt IS
  'Fencing number: 1 for the first claim, one more each time a reconciler takes it over or a released one is claimed anew.';
COMMENT ON COLUMN @extschema@.idempotency_keys.response_code IS 'The stored HTTP status.';
COMMENT ON COLUMN @extschema@.idempotency_keys.response_headers IS 'The stored headers: an array of [name, value] pairs.';
COMMENT ON COLUMN @extschema@.idempotency_keys.response_body IS
  'The stored body, byte for byte. NULL is no body, which is not the same as an empty one.';
COMMENT ON COLUMN @extschema@.idempotency_keys.resource_ref IS
  'What to rebuild the response from, when the body is too large to store.';
COMMENT ON COLUMN @extschema@.idempotency_keys.provider_key IS
  'External endpoints: the key to pass to the provider, derived from scope and request hash (UUID version 8).';
COMMENT ON COLUMN @extschema@.idempotency_keys.recovery_point IS
  'Last committed step of an external operation of several steps.';
COMMENT ON COLUMN @extschema@.idempotency_keys.recovery_state IS 'What a reconciler needs to go on from there.';
COMMENT ON COLUMN @extschema@.idempotency_keys.open_since IS
  'Set while an in_progress row may outlive its transaction.';
COMMENT ON COLUMN @extschema@.idempotency_keys.lease_until IS 'Set while a reconciler holds the claim.';
COMMENT ON COLUMN @extschema@.idempotency_keys.created_at IS 'Start of the transaction of the first attempt.';
COMMENT ON COLUMN @extschema@.idempotency_keys.completed_at IS 'When the result was stored.';
COMMENT ON COLUMN @extschema@.idempotency_keys.erased_at IS 'When idem_erase() blanked the stored answer.';
COMMENT ON COLUMN @extschema@.idempotency_keys.expires_at IS
  'Retention end of a finished row. A row in progress never expires.';
COMMENT ON INDEX @extschema@.idempotency_endpoints_pkey IS 'One registration an endpoint.';
COMMENT ON INDEX @extschema@.idempotency_keys_pkey IS 'Wins the race between two arrivals.';
COMMENT ON INDEX @extschema@.idempotency_keys_expires_at_idx IS 'For the sweep, in expiry order.';
COMMENT ON INDEX @extschema@.idempotency_keys_open_since_idx IS 'Holds open claims only.';

-- Keys and registered endpoints survive pg_dump and restore.
SELECT pg_catalog.pg_extension_config_dump('@extschema@.idempotency_keys', '');
SELECT pg_catalog.pg_extension_config_dump('@extschema@.idempotency_endpoints', '');
