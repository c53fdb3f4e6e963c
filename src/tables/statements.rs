//! The text of the statements. `@extschema@` stands for the extension's schema, as in the install script.
//!
//! They run with `search_path = pg_catalog, pg_temp`: unqualified functions and operators are PostgreSQL's own.
//! Each returns something: see `Spi::check_relations`.

use super::BuiltinOid;
use crate::pg::spi::Planning;
use pgrx::pg_sys::BuiltinOid::{
    BOOLOID as BOOL, BYTEAOID as BYTEA, INT4OID as INT4, INT8OID as INT8, INTERVALOID as INTERVAL, JSONBOID as JSONB,
    TEXTARRAYOID as TEXT_ARRAY, TEXTOID as TEXT, TIMESTAMPTZOID as TIMESTAMPTZ, UUIDOID as UUID,
};
use std::ffi::CStr;

#[derive(Clone, Copy)]
pub enum Statement {
    LookUp,
    Endpoint,
    Insert,
    TakeOver,
    Finish,
    Obstacle,
    Release,
    Checkpoint,
    State,
    IsLeftOpen,
    Sweep,
    CountDue,
    CountStuck,
    Stuck,
    HandOut,
    Register,
    Unregister,
    CountAlive,
}

/// $1 tenant, $2 endpoint, $3 key, $4 request hash.
const LOOK_UP: &str = "
SELECT k.status <> 'in_progress', k.expires_at <= now(), k.request_hash = $4,
       k.response_code, k.response_headers, k.response_body, k.resource_ref,
       k.attempt, k.provider_key, k.expires_at
  FROM @extschema@.idempotency_keys k
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3";

/// $1 endpoint.
const ENDPOINT: &str = "
SELECT e.effect = 'external', e.key_required, e.retry_window, e.ttl
  FROM @extschema@.idempotency_endpoints e
 WHERE e.endpoint = $1";

/// $1 tenant, $2 endpoint, $3 key, $4 request hash, $5 provider key, $6 may stay open, $7 ttl.
const INSERT: &str = "
INSERT INTO @extschema@.idempotency_keys
       (tenant_id, endpoint, key, request_hash, provider_key, open_since, expires_at)
VALUES ($1, $2, $3, $4, $5, CASE WHEN $6 THEN clock_timestamp() END, now() + $7)
ON CONFLICT (tenant_id, endpoint, key) DO NOTHING
RETURNING expires_at";

/// As INSERT. The row is locked first, without waiting: the sweep may be deleting it.
const TAKE_OVER: &str = "
WITH expired AS MATERIALIZED (
  SELECT k.tenant_id, k.endpoint, k.key
    FROM @extschema@.idempotency_keys k
   WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3
     AND k.status <> 'in_progress' AND k.expires_at <= now()
     FOR UPDATE SKIP LOCKED)
UPDATE @extschema@.idempotency_keys k
   SET request_hash = $4, status = 'in_progress', attempt = 1,
       response_code = NULL, response_headers = NULL, response_body = NULL, resource_ref = NULL,
       provider_key = $5, recovery_point = NULL, recovery_state = NULL,
       open_since = CASE WHEN $6 THEN clock_timestamp() END, lease_until = NULL,
       created_at = now(), completed_at = NULL, expires_at = now() + $7
  FROM expired
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3
   AND k.tenant_id = expired.tenant_id AND k.endpoint = expired.endpoint AND k.key = expired.key
RETURNING k.expires_at";

/// $1 tenant, $2 endpoint, $3 key, $4 status, $5 attempt, $6 code, $7 headers, $8 body, $9 resource_ref, $10 limit.
///
/// `expires_at` is set anew for a claim that was open, and for one whose transaction took over a minute: a full ttl
/// from now. Otherwise it keeps its value, and with it the update stays HOT.
const FINISH: &str = "
UPDATE @extschema@.idempotency_keys k
   SET status = $4, response_code = $6, response_headers = $7,
       response_body = CASE WHEN octet_length($8) <= l.max_body_bytes THEN $8 END,
       resource_ref = $9, completed_at = clock_timestamp(), open_since = NULL, lease_until = NULL,
       expires_at = CASE WHEN k.expires_at = 'infinity'
                           OR k.open_since IS NULL AND clock_timestamp() - k.created_at < '1 minute'
                         THEN k.expires_at
                         ELSE clock_timestamp()
                              + make_interval(secs => EXTRACT(epoch FROM k.expires_at - k.created_at)::float8) END
  FROM (SELECT COALESCE((SELECT e.max_body_bytes FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = $2),
                        $10) AS max_body_bytes) l
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3
   AND k.status = 'in_progress' AND k.attempt = $5
   AND ($8 IS NULL OR $9 IS NOT NULL OR octet_length($8) <= l.max_body_bytes)
RETURNING 1";

/// As FINISH.
const OBSTACLE: &str = "
SELECT k.status, k.attempt,
       k.status = $4 AND k.response_code = $6
         AND k.response_headers IS NOT DISTINCT FROM $7
         AND (k.response_body IS NOT DISTINCT FROM $8
              OR k.response_body IS NULL AND $9 IS NOT NULL AND octet_length($8) > l.max_body_bytes)
         AND k.resource_ref IS NOT DISTINCT FROM $9,
       CASE WHEN $9 IS NULL AND octet_length($8) > l.max_body_bytes THEN l.max_body_bytes END
  FROM @extschema@.idempotency_keys k,
       (SELECT COALESCE((SELECT e.max_body_bytes FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = $2),
                        $10) AS max_body_bytes) l
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3";

/// $1 tenant, $2 endpoint, $3 key, $4 attempt.
const RELEASE: &str = "
DELETE FROM @extschema@.idempotency_keys k
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3 AND k.status = 'in_progress' AND k.attempt = $4
RETURNING 1";

/// $1 tenant, $2 endpoint, $3 key, $4 attempt, $5 recovery point, $6 recovery state.
const CHECKPOINT: &str = "
UPDATE @extschema@.idempotency_keys k
   SET recovery_point = $5, recovery_state = $6
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3 AND k.status = 'in_progress' AND k.attempt = $4
RETURNING 1";

const STATE: &str = "
SELECT k.status, k.attempt
  FROM @extschema@.idempotency_keys k
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3";

const IS_LEFT_OPEN: &str = "
SELECT 1
  FROM @extschema@.idempotency_keys k
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3 AND k.status = 'in_progress' AND k.open_since IS NULL";

/// $1 the largest number of rows, $2 NULL or where to begin: a batch that follows another need not pass over the rows
/// that the other has deleted, which stay in the index while an old snapshot may see them. $3 how many rows to pass over.
const SWEEP: &str = "
WITH batch AS MATERIALIZED (
  SELECT k.tenant_id, k.endpoint, k.key
    FROM @extschema@.idempotency_keys k
   WHERE k.expires_at <= now() AND k.expires_at >= COALESCE($2, '-infinity') AND k.status <> 'in_progress'
   ORDER BY k.expires_at
   LIMIT $1 OFFSET $3
     FOR UPDATE SKIP LOCKED),
swept AS (
  DELETE FROM @extschema@.idempotency_keys k
   USING batch
   WHERE k.tenant_id = batch.tenant_id AND k.endpoint = batch.endpoint AND k.key = batch.key
  RETURNING k.endpoint, k.expires_at)
SELECT s.endpoint, count(*), max(s.expires_at) FROM swept s GROUP BY s.endpoint";

/// $1 the number at which counting stops.
const COUNT_DUE: &str = "
SELECT count(*)
  FROM (SELECT 1
          FROM @extschema@.idempotency_keys k
         WHERE k.expires_at <= now() AND k.status <> 'in_progress'
         ORDER BY k.expires_at
         LIMIT $1) due";

/// Open claims older than their endpoint's stuck_after, as in the view idem_stuck.
macro_rules! from_stuck {
    () => {
        "
  FROM @extschema@.idempotency_keys k
  LEFT JOIN @extschema@.idempotency_endpoints e ON e.endpoint = k.endpoint
 WHERE k.open_since IS NOT NULL
   AND k.open_since < now() - COALESCE(e.stuck_after, '60 seconds'::interval)"
    };
}
const COUNT_STUCK: &str = concat!("SELECT k.endpoint, count(*)", from_stuck!(), " GROUP BY k.endpoint");

/// $1 the largest number of rows.
const STUCK: &str = concat!(
    "SELECT k.tenant_id, k.endpoint, k.key, k.attempt, date_trunc('second', now() - k.open_since)::text",
    from_stuck!(),
    " ORDER BY k.open_since LIMIT $1"
);

/// $1 the largest number of claims, $2 lease, $3 the only endpoint, or NULL for all.
const HAND_OUT: &str = "
WITH stuck AS MATERIALIZED (
  SELECT k.tenant_id, k.endpoint, k.key
    FROM @extschema@.idempotency_keys k
    LEFT JOIN @extschema@.idempotency_endpoints e ON e.endpoint = k.endpoint
   WHERE k.open_since IS NOT NULL
     AND k.open_since < clock_timestamp() - COALESCE(e.stuck_after, '60 seconds')
     AND (k.lease_until IS NULL OR k.lease_until <= clock_timestamp())
     AND ($3 IS NULL OR k.endpoint = $3)
   ORDER BY k.open_since
   LIMIT $1
     FOR UPDATE OF k SKIP LOCKED),
taken AS (
  UPDATE @extschema@.idempotency_keys k
     SET attempt = k.attempt + 1, lease_until = clock_timestamp() + $2
    FROM stuck s
   WHERE k.tenant_id = s.tenant_id AND k.endpoint = s.endpoint AND k.key = s.key
  RETURNING k.tenant_id, k.endpoint, k.key, k.provider_key, k.attempt, k.recovery_point, k.recovery_state, k.open_since)
SELECT jsonb_agg(to_jsonb(t) ORDER BY t.open_since, t.tenant_id, t.endpoint, t.key) FROM taken t";

/// $1 endpoint, $2 effect, $3 key_required, $4 retry_window, $5 ttl, $6 stuck_after, $7 max_body_bytes,
/// $8 expected_writes_per_day, $9 guesses, $10 notes.
const REGISTER: &str = "
WITH before AS (SELECT e.effect FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = $1)
INSERT INTO @extschema@.idempotency_endpoints
       (endpoint, effect, key_required, retry_window, ttl, stuck_after, max_body_bytes,
        expected_writes_per_day, guesses, notes)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
ON CONFLICT (endpoint) DO UPDATE
   SET effect = excluded.effect, key_required = excluded.key_required, retry_window = excluded.retry_window,
       ttl = excluded.ttl, stuck_after = excluded.stuck_after, max_body_bytes = excluded.max_body_bytes,
       expected_writes_per_day = excluded.expected_writes_per_day, guesses = excluded.guesses, notes = excluded.notes
RETURNING (SELECT before.effect FROM before)";

/// $1 endpoint.
const UNREGISTER: &str = "DELETE FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = $1 RETURNING 1";

/// $1 endpoint. None are counted when it is not registered: there is nothing to remove.
const COUNT_ALIVE: &str = "
SELECT count(*)
  FROM @extschema@.idempotency_keys k
 WHERE k.endpoint = $1 AND (k.status = 'in_progress' OR k.expires_at > now())
   AND EXISTS (SELECT FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = $1)";

impl Statement {
    pub const COUNT: usize = Statement::CountAlive as usize + 1;

    pub fn sql(self, schema: &CStr) -> Vec<u8> {
        let text = match self {
            Statement::LookUp => LOOK_UP,
            Statement::Endpoint => ENDPOINT,
            Statement::Insert => INSERT,
            Statement::TakeOver => TAKE_OVER,
            Statement::Finish => FINISH,
            Statement::Obstacle => OBSTACLE,
            Statement::Release => RELEASE,
            Statement::Checkpoint => CHECKPOINT,
            Statement::State => STATE,
            Statement::IsLeftOpen => IS_LEFT_OPEN,
            Statement::Sweep => SWEEP,
            Statement::CountDue => COUNT_DUE,
            Statement::CountStuck => COUNT_STUCK,
            Statement::Stuck => STUCK,
            Statement::HandOut => HAND_OUT,
            Statement::Register => REGISTER,
            Statement::Unregister => UNREGISTER,
            Statement::CountAlive => COUNT_ALIVE,
        };
        let parts: Vec<&[u8]> = text.split("@extschema@").map(str::as_bytes).collect();
        parts.join(schema.to_bytes())
    }

    /// A batch is planned for its size: not knowing it, the planner would rather read all of the table.
    pub fn planning(self) -> Planning {
        match self {
            Statement::Sweep => Planning::EachTime,
            _ => Planning::Once,
        }
    }

    pub fn types(self) -> &'static [BuiltinOid] {
        match self {
            Statement::LookUp => &[TEXT, TEXT, TEXT, BYTEA],
            Statement::Endpoint => &[TEXT],
            Statement::Insert | Statement::TakeOver => &[TEXT, TEXT, TEXT, BYTEA, UUID, BOOL, INTERVAL],
            Statement::Finish | Statement::Obstacle => &[TEXT, TEXT, TEXT, TEXT, INT4, INT4, JSONB, BYTEA, TEXT, INT4],
            Statement::Release => &[TEXT, TEXT, TEXT, INT4],
            Statement::Checkpoint => &[TEXT, TEXT, TEXT, INT4, TEXT, JSONB],
            Statement::State | Statement::IsLeftOpen => &[TEXT, TEXT, TEXT],
            Statement::Sweep => &[INT4, TIMESTAMPTZ, INT4],
            Statement::CountDue | Statement::Stuck => &[INT4],
            Statement::CountStuck => &[],
            Statement::HandOut => &[INT4, INTERVAL, TEXT],
            Statement::Register => &[TEXT, TEXT, BOOL, INTERVAL, INTERVAL, INTERVAL, INT4, INT8, TEXT_ARRAY, TEXT],
            Statement::Unregister | Statement::CountAlive => &[TEXT],
        }
    }
}
