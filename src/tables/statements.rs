//! The text of the statements. `@extschema@` stands for the extension's schema, as in the install script.
//!
//! They run with `search_path = pg_catalog, pg_temp`: unqualified functions and operators are PostgreSQL's own.
//! Each returns something: see `Spi::check_meaning`.

use super::BuiltinOid;
use crate::pg::spi::Planning;
use pgrx::pg_sys::BuiltinOid::{
    BOOLOID as BOOL, BYTEAOID as BYTEA, INT4OID as INT4, INT8OID as INT8, INTERVALOID as INTERVAL, JSONBOID as JSONB,
    TEXTARRAYOID as TEXT_ARRAY, TEXTOID as TEXT, TIMESTAMPTZOID as TIMESTAMPTZ, UUIDOID as UUID,
};

#[derive(Clone, Copy)]
pub enum Statement {
    LookUp,
    Endpoint,
    Insert,
    TakeOver,
    Finish,
    Obstacle,
    Release,
    DeleteClaim,
    Forget,
    Erase,
    Checkpoint,
    State,
    Sweep,
    CountDue,
    CountStuck,
    Stuck,
    HandOut,
    Register,
    Unregister,
    CountAlive,
    OpenClaims,
    SweepLag,
    Registry,
    UnregisteredInUse,
}

/// $1 tenant, $2 endpoint, $3 key, $4 fingerprint.
const LOOK_UP: &str = "
SELECT k.status, k.expires_at <= now(), k.request_hash = $4,
       k.attempt, k.created_at, k.completed_at, k.erased_at,
       k.response_code, k.response_headers, k.response_body, k.resource_ref, k.provider_key, k.expires_at
  FROM @extschema@.idempotency_keys k
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3";

/// $1 endpoint.
const ENDPOINT: &str = "
SELECT e.effect = 'external', e.key_required, e.retry_window, e.ttl
  FROM @extschema@.idempotency_endpoints e
 WHERE e.endpoint = $1";

/// $1 tenant, $2 endpoint, $3 key, $4 fingerprint, $5 provider key, $6 may stay open, $7 ttl.
const INSERT: &str = "
INSERT INTO @extschema@.idempotency_keys
       (tenant_id, endpoint, key, request_hash, provider_key, open_since, expires_at)
VALUES ($1, $2, $3, $4, $5, CASE WHEN $6 THEN clock_timestamp() END, now() + $7)
ON CONFLICT (tenant_id, endpoint, key) DO NOTHING
RETURNING attempt, expires_at";

/// As INSERT. The row is locked first, without waiting: the sweep may be deleting it.
///
/// DELETE and INSERT, not UPDATE: a logical subscriber that no longer has the old row still gets the new one. The number of a
/// tombstone is not given out again, that of an expired result is.
const TAKE_OVER: &str = "
WITH old AS MATERIALIZED (
  SELECT k.tenant_id, k.endpoint, k.key
    FROM @extschema@.idempotency_keys k
   WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3
     AND (k.status = 'released' OR k.status <> 'in_progress' AND k.expires_at <= now())
     FOR UPDATE SKIP LOCKED),
gone AS (
  DELETE FROM @extschema@.idempotency_keys k
   USING old
   WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3
     AND k.tenant_id = old.tenant_id AND k.endpoint = old.endpoint AND k.key = old.key
  RETURNING CASE WHEN k.status = 'released' THEN k.attempt + 1 ELSE 1 END AS attempt)
INSERT INTO @extschema@.idempotency_keys
       (tenant_id, endpoint, key, request_hash, attempt, provider_key, open_since, expires_at)
SELECT $1, $2, $3, $4, gone.attempt, $5, CASE WHEN $6 THEN clock_timestamp() END, now() + $7 FROM gone
RETURNING attempt, expires_at";

/// $1 tenant, $2 endpoint, $3 key, $4 status, $5 attempt, $6 code, $7 headers, $8 body, $9 resource_ref, $10 limit.
///
/// `expires_at` is set anew for a claim that was open, and for one whose transaction took over a minute: a full ttl
/// from now. Otherwise it keeps its value, and with it the update stays HOT.
const FINISH: &str = "
UPDATE @extschema@.idempotency_keys k
   SET status = $4, response_code = $6, response_headers = $7,
       response_body = CASE WHEN octet_length($8) <= l.max_body_bytes THEN $8 END,
       resource_ref = $9, completed_at = clock_timestamp(), open_since = NULL, lease_until = NULL,
       expires_at = CASE WHEN k.open_since IS NULL AND clock_timestamp() - k.created_at < '1 minute'
                         THEN k.expires_at
                         ELSE clock_timestamp()
                              + make_interval(secs => EXTRACT(epoch FROM k.expires_at - k.created_at)::float8) END
  FROM (SELECT COALESCE((SELECT e.max_body_bytes FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = $2),
                        $10) AS max_body_bytes) l
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3
   AND k.status = 'in_progress' AND k.attempt = $5
   AND ($8 IS NULL OR $9 IS NOT NULL OR octet_length($8) <= l.max_body_bytes)
RETURNING 1";

/// As FINISH. Of an erased result only the status and the code are left to compare.
const OBSTACLE: &str = "
SELECT k.status, k.attempt,
       k.status = $4 AND k.response_code = $6
         AND (k.erased_at IS NOT NULL
              OR k.response_headers IS NOT DISTINCT FROM $7
                 AND (k.response_body IS NOT DISTINCT FROM $8
                      OR k.response_body IS NULL AND $9 IS NOT NULL AND octet_length($8) > l.max_body_bytes)
                 AND k.resource_ref IS NOT DISTINCT FROM $9),
       CASE WHEN $9 IS NULL AND octet_length($8) > l.max_body_bytes THEN l.max_body_bytes END
  FROM @extschema@.idempotency_keys k,
       (SELECT COALESCE((SELECT e.max_body_bytes FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = $2),
                        $10) AS max_body_bytes) l
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3";

/// $1 tenant, $2 endpoint, $3 key, $4 attempt, $5 the attempt of the tombstone. It is kept for a full ttl from now.
const RELEASE: &str = "
UPDATE @extschema@.idempotency_keys k
   SET status = 'released', attempt = $5, open_since = NULL, lease_until = NULL,
       recovery_point = NULL, recovery_state = NULL,
       expires_at = clock_timestamp() + make_interval(secs => EXTRACT(epoch FROM k.expires_at - k.created_at)::float8)
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3 AND k.status = 'in_progress' AND k.attempt = $4
RETURNING 1";

/// $1 tenant, $2 endpoint, $3 key, $4 attempt.
const DELETE_CLAIM: &str = "
DELETE FROM @extschema@.idempotency_keys k
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3 AND k.status = 'in_progress' AND k.attempt = $4
RETURNING 1";

/// $1 tenant, $2 endpoint, $3 key. As RELEASE, of a result.
const FORGET: &str = "
UPDATE @extschema@.idempotency_keys k
   SET status = 'released', response_code = NULL, response_headers = NULL, response_body = NULL, resource_ref = NULL,
       recovery_point = NULL, recovery_state = NULL, completed_at = NULL,
       expires_at = clock_timestamp() + greatest(k.expires_at - COALESCE(k.completed_at, k.created_at), '24 hours')
 WHERE k.tenant_id = $1 AND k.endpoint = $2 AND k.key = $3 AND k.status IN ('succeeded', 'failed')
RETURNING 1";

/// $1 tenant, $2 endpoint or NULL for all, $3 key or NULL for all.
const ERASE: &str = "
WITH erased AS (
  UPDATE @extschema@.idempotency_keys k
     SET response_body = NULL, response_headers = NULL, resource_ref = NULL, recovery_state = NULL,
         erased_at = clock_timestamp()
   WHERE k.tenant_id = $1 AND ($2 IS NULL OR k.endpoint = $2) AND ($3 IS NULL OR k.key = $3)
     AND k.status <> 'in_progress' AND k.erased_at IS NULL
  RETURNING 1)
SELECT count(*) FROM erased";

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

/// An open claim `k` is stuck when it is older than the `stuck_after` of its endpoint `e`; as in the view idem_stuck.
/// The statement's time stands still within it and, unlike now(), does not in a long transaction.
macro_rules! is_stuck {
    () => {
        "k.open_since < statement_timestamp() - COALESCE(e.stuck_after, '60 seconds'::interval)"
    };
}
macro_rules! from_stuck {
    () => {
        concat!(
            "
  FROM @extschema@.idempotency_keys k
  LEFT JOIN @extschema@.idempotency_endpoints e ON e.endpoint = k.endpoint
 WHERE k.open_since IS NOT NULL
   AND ",
            is_stuck!()
        )
    };
}
const COUNT_STUCK: &str = concat!("SELECT k.endpoint, count(*)", from_stuck!(), " GROUP BY k.endpoint");

/// $1 the largest number of rows.
const STUCK: &str = concat!(
    "SELECT k.tenant_id, k.endpoint, k.key, k.attempt,
       date_trunc('second', statement_timestamp() - k.open_since)::text",
    from_stuck!(),
    " ORDER BY k.open_since LIMIT $1"
);

/// $1 the largest number of claims, $2 lease, $3 the only endpoint, or NULL for all.
///
/// Endpoints take turns, the unregistered ones together, so that no flood of one keeps another's waiting; some more of each
/// are considered than wanted, since others may hold some.
const HAND_OUT: &str = concat!(
    "
WITH stuck AS MATERIALIZED (
  SELECT k.tenant_id, k.endpoint, k.key, k.lease_until, k.open_since,
         row_number() OVER (PARTITION BY e.endpoint ORDER BY k.lease_until NULLS FIRST, k.open_since) AS turn
    FROM @extschema@.idempotency_keys k
    LEFT JOIN @extschema@.idempotency_endpoints e ON e.endpoint = k.endpoint
   WHERE k.open_since IS NOT NULL
     AND ",
    is_stuck!(),
    "
     AND k.attempt < 1000000000
     AND (k.lease_until IS NULL OR k.lease_until <= clock_timestamp())
     AND ($3 IS NULL OR k.endpoint = $3)),
chosen AS MATERIALIZED (
  SELECT k.tenant_id, k.endpoint, k.key, s.turn, s.open_since
    FROM stuck s
    JOIN @extschema@.idempotency_keys k
      ON k.tenant_id = s.tenant_id AND k.endpoint = s.endpoint AND k.key = s.key
   WHERE s.turn <= $1::bigint + 1000
     AND k.open_since IS NOT NULL AND (k.lease_until IS NULL OR k.lease_until <= clock_timestamp())
   ORDER BY s.turn, s.lease_until NULLS FIRST, s.open_since
   LIMIT $1
     FOR UPDATE OF k SKIP LOCKED),
taken AS (
  UPDATE @extschema@.idempotency_keys k
     SET attempt = k.attempt + 1, lease_until = clock_timestamp() + $2
    FROM chosen c
   WHERE k.tenant_id = c.tenant_id AND k.endpoint = c.endpoint AND k.key = c.key
  RETURNING k.tenant_id, k.endpoint, k.key, k.provider_key, k.attempt, k.recovery_point, k.recovery_state, k.open_since,
            c.turn)
SELECT t.tenant_id, t.endpoint, t.key, t.provider_key, t.attempt, t.recovery_point, t.recovery_state, t.open_since
  FROM taken t
 ORDER BY t.turn, t.open_since, t.tenant_id, t.endpoint, t.key"
);

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

/// $1 endpoint. None are counted when it is not registered: there is nothing to remove. Tombstones have no client.
const COUNT_ALIVE: &str = "
SELECT count(*)
  FROM @extschema@.idempotency_keys k
 WHERE k.endpoint = $1 AND (k.status = 'in_progress' OR k.status <> 'released' AND k.expires_at > now())
   AND EXISTS (SELECT FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = $1)";

/// Open claims of each registered endpoint and of a hundred others; the rest of those together, without an endpoint.
/// Who puts ids into his endpoints must not flood a monitoring system.
const OPEN_CLAIMS: &str = concat!(
    "
WITH claims AS MATERIALIZED (
  SELECT k.endpoint, count(*) AS open,
         count(*) FILTER (WHERE ",
    is_stuck!(),
    ") AS stuck,
         count(*) FILTER (WHERE ",
    is_stuck!(),
    " AND k.lease_until > statement_timestamp()) AS leased,
         min(k.open_since) AS oldest
    FROM @extschema@.idempotency_keys k
    LEFT JOIN @extschema@.idempotency_endpoints e ON e.endpoint = k.endpoint
   WHERE k.open_since IS NOT NULL
   GROUP BY k.endpoint),
unregistered AS MATERIALIZED (
  SELECT c.*, row_number() OVER (ORDER BY c.open DESC, c.endpoint) AS rank
    FROM claims c
   WHERE NOT EXISTS (SELECT FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = c.endpoint))
SELECT e.endpoint, true, COALESCE(c.open, 0), COALESCE(c.stuck, 0), COALESCE(c.leased, 0), c.oldest
  FROM @extschema@.idempotency_endpoints e
  LEFT JOIN claims c ON c.endpoint = e.endpoint
UNION ALL
SELECT u.endpoint, false, u.open, u.stuck, u.leased, u.oldest FROM unregistered u WHERE u.rank <= 100
UNION ALL
SELECT NULL, false, sum(u.open)::bigint, sum(u.stuck)::bigint, sum(u.leased)::bigint, min(u.oldest)
  FROM unregistered u
 WHERE u.rank > 100
HAVING count(*) > 0"
);

const SWEEP_LAG: &str = "
SELECT statement_timestamp() - k.expires_at
  FROM @extschema@.idempotency_keys k
 WHERE k.expires_at <= statement_timestamp() AND k.status <> 'in_progress'
 ORDER BY k.expires_at
 LIMIT 1";

/// All columns, in their order; more rows than anybody registers by hand.
const REGISTRY: &str = "
SELECT e.endpoint, e.effect, e.key_required, e.retry_window, e.ttl, e.stuck_after, e.max_body_bytes,
       e.expected_writes_per_day, e.guesses, e.notes, e.created_at
  FROM @extschema@.idempotency_endpoints e
 ORDER BY e.endpoint
 LIMIT 10000";

/// Among the oldest open claims and the last rows to expire: never the whole table.
const UNREGISTERED_IN_USE: &str = "
SELECT u.endpoint, bool_or(u.is_open), bool_or(NOT u.is_open)
  FROM ((SELECT k.endpoint, true AS is_open
           FROM @extschema@.idempotency_keys k
          WHERE k.open_since IS NOT NULL
          ORDER BY k.open_since
          LIMIT 1000)
        UNION ALL
        (SELECT k.endpoint, k.open_since IS NOT NULL
           FROM @extschema@.idempotency_keys k
          ORDER BY k.expires_at DESC
          LIMIT 1000)) u
 WHERE NOT EXISTS (SELECT FROM @extschema@.idempotency_endpoints e WHERE e.endpoint = u.endpoint)
 GROUP BY u.endpoint
 ORDER BY u.endpoint
 LIMIT 20";

impl Statement {
    pub const COUNT: usize = Statement::UnregisteredInUse as usize + 1;

    /// The text, with `@extschema@` for the schema.
    pub fn text(self) -> &'static str {
        match self {
            Statement::LookUp => LOOK_UP,
            Statement::Endpoint => ENDPOINT,
            Statement::Insert => INSERT,
            Statement::TakeOver => TAKE_OVER,
            Statement::Finish => FINISH,
            Statement::Obstacle => OBSTACLE,
            Statement::Release => RELEASE,
            Statement::DeleteClaim => DELETE_CLAIM,
            Statement::Forget => FORGET,
            Statement::Erase => ERASE,
            Statement::Checkpoint => CHECKPOINT,
            Statement::State => STATE,
            Statement::Sweep => SWEEP,
            Statement::CountDue => COUNT_DUE,
            Statement::CountStuck => COUNT_STUCK,
            Statement::Stuck => STUCK,
            Statement::HandOut => HAND_OUT,
            Statement::Register => REGISTER,
            Statement::Unregister => UNREGISTER,
            Statement::CountAlive => COUNT_ALIVE,
            Statement::OpenClaims => OPEN_CLAIMS,
            Statement::SweepLag => SWEEP_LAG,
            Statement::Registry => REGISTRY,
            Statement::UnregisteredInUse => UNREGISTERED_IN_USE,
        }
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
            Statement::Release => &[TEXT, TEXT, TEXT, INT4, INT4],
            Statement::DeleteClaim => &[TEXT, TEXT, TEXT, INT4],
            Statement::Checkpoint => &[TEXT, TEXT, TEXT, INT4, TEXT, JSONB],
            Statement::State | Statement::Forget | Statement::Erase => &[TEXT, TEXT, TEXT],
            Statement::Sweep => &[INT4, TIMESTAMPTZ, INT4],
            Statement::CountDue | Statement::Stuck => &[INT4],
            Statement::CountStuck => &[],
            Statement::HandOut => &[INT4, INTERVAL, TEXT],
            Statement::Register => &[TEXT, TEXT, BOOL, INTERVAL, INTERVAL, INTERVAL, INT4, INT8, TEXT_ARRAY, TEXT],
            Statement::Unregister | Statement::CountAlive => &[TEXT],
            Statement::OpenClaims | Statement::SweepLag | Statement::Registry | Statement::UnregisteredInUse => &[],
        }
    }
}
