//! Every statement against the tables, prepared once a backend.
//!
//! Each names `tenant_id` where it touches single rows, so that the table can be distributed or partitioned by it.

use crate::fingerprint::RequestHash;
use crate::pg::rights::OwnerRights;
use crate::pg::spi::{Mode, Plan, Row, Spi};
use crate::pg::subscriptions;
use crate::pg::value::Value;
use crate::refusal::Refusal;
use crate::scope::Scope;
use crate::verdict::{judge, Facts, Verdict};
use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::pg_sys::{self, BuiltinOid};
use std::cell::RefCell;
use std::ffi::{CStr, CString};

mod statements;
use statements::Statement;

/// The extension's tables, opened with their owner's rights for the length of one call.
pub struct Tables {
    // Dropped in this order: SPI is left first, then the caller's rights come back.
    spi: Spi,
    rights: OwnerRights,
    schema: pg_sys::Oid,
}

/// What an endpoint is registered as.
pub struct Endpoint {
    pub external: bool,
    pub key_required: bool,
    pub retry_window: Interval,
    pub ttl: Interval,
}

/// A stored response, as it will be sent again.
pub struct Response {
    pub code: Option<i32>,
    /// `jsonb` in its binary form.
    pub headers: Option<Vec<u8>>,
    pub body: Option<Vec<u8>>,
    /// In the database's encoding.
    pub resource_ref: Option<Vec<u8>>,
    pub attempt: Option<i32>,
    pub provider_key: Option<[u8; 16]>,
    pub expires_at: Option<TimestampWithTimeZone>,
}

/// What is known of a scope when a request arrives.
pub struct Seen {
    pub verdict: Verdict,
    /// Read only for [`Verdict::Replay`]: without the right body, a stored response cannot be read.
    pub response: Option<Response>,
}

/// A new claim.
pub struct NewClaim<'a> {
    pub scope: &'a Scope,
    pub request_hash: &'a RequestHash,
    pub provider_key: Option<[u8; 16]>,
    /// The claim may be committed in progress.
    pub may_stay_open: bool,
    pub ttl: Interval,
}

/// A result to store.
pub struct Outcome<'a> {
    pub scope: &'a Scope,
    /// `succeeded` or `failed`.
    pub status: &'static str,
    pub attempt: i32,
    pub response_code: i32,
    pub response_headers: Value,
    pub response_body: Option<&'a [u8]>,
    pub resource_ref: Value,
    /// The limit in bytes where the endpoint does not say otherwise.
    pub max_body_bytes: i32,
}

/// Why a result could not be stored: the row as it is.
pub struct Obstacle {
    pub status: String,
    pub attempt: i32,
    /// The row holds this very result.
    pub same_result: bool,
    /// The limit in bytes, when the body is over it and there is no `resource_ref`.
    pub over_limit: Option<i32>,
}

/// An open claim that is older than its endpoint's `stuck_after`.
pub struct StuckClaim {
    pub scope: Scope,
    pub attempt: i32,
    /// As an interval, to the second.
    pub open_for: String,
}

/// The rows of one endpoint that a batch has deleted.
pub struct Swept {
    pub endpoint: String,
    pub rows: i64,
    /// The latest end of their retention.
    pub latest: Option<TimestampWithTimeZone>,
}

/// Plans are kept for one schema; an extension that was dropped and created elsewhere gets new ones.
struct Plans {
    schema: pg_sys::Oid,
    schema_name: CString,
    kept: [Option<Plan>; Statement::COUNT],
}

thread_local! {
    static PLANS: RefCell<Option<Plans>> = const { RefCell::new(None) };
}

impl Tables {
    /// Opens the tables in the extension's schema; `55000` when they are not there.
    pub fn open(schema: pg_sys::Oid) -> Result<Self, Refusal> {
        let owner = owner_of_keys(schema).ok_or_else(Refusal::not_installed)?;
        let rights = OwnerRights::assume(owner);
        let spi = Spi::connect(
            [c"idempotency_keys", c"idempotency_endpoints"]
                .into_iter()
                .filter_map(|name| find_table(schema, name))
                .collect(),
        );
        check_schema(schema);
        Ok(Tables { spi, rights, schema })
    }

    pub fn schema(&self) -> pg_sys::Oid {
        self.schema
    }

    /// What the stored row means for this request. Takes no lock and writes nothing.
    pub fn look_up(&self, scope: &Scope, hash: &RequestHash, mode: Mode) -> Seen {
        let [tenant, endpoint, key] = scope_args(scope);
        let read = |row: &Row| {
            let verdict = judge(Some(Facts {
                finished: row.bool(0).unwrap_or(false),
                expired: row.bool(1).unwrap_or(false),
                same_body: row.bool(2).unwrap_or(false),
            }));
            let response = (verdict == Verdict::Replay).then(|| Response {
                code: row.int(3),
                headers: row.payload(4),
                body: row.payload(5),
                resource_ref: row.payload(6),
                attempt: row.int(7),
                provider_key: row.uuid(8),
                expires_at: row.timestamptz(9),
            });
            Seen { verdict, response }
        };
        let args = [tenant, endpoint, key, Value::payload(hash)];
        self.first(Statement::LookUp, &args, mode, read).unwrap_or(Seen { verdict: judge(None), response: None })
    }

    /// What the endpoint is registered as; `None` when it is not.
    pub fn endpoint(&self, endpoint: &str) -> Option<Endpoint> {
        self.first(Statement::Endpoint, &[Value::text(endpoint)], Mode::Read, |row| Endpoint {
            external: row.bool(0).unwrap_or(true),
            key_required: row.bool(1).unwrap_or(true),
            retry_window: row.interval(2).unwrap_or_else(|| Interval::from_hours(24)),
            ttl: row.interval(3).unwrap_or_else(|| Interval::from_hours(48)),
        })
    }

    /// Inserts the claim; `None` when the key is there already. Returns the end of its retention.
    pub fn insert(&self, claim: &NewClaim) -> Option<TimestampWithTimeZone> {
        self.first(Statement::Insert, &claim.args(), Mode::Write, |row| row.timestamptz(0)).flatten()
    }

    /// Puts the claim in the place of an expired, finished row; `None` when there is none or it is locked.
    pub fn take_over(&self, claim: &NewClaim) -> Option<TimestampWithTimeZone> {
        self.first(Statement::TakeOver, &claim.args(), Mode::Write, |row| row.timestamptz(0)).flatten()
    }

    /// Stores a result; false when the row is not this attempt's open claim or the body is over the limit.
    pub fn finish(&self, outcome: &Outcome) -> bool {
        self.run(Statement::Finish, &outcome.args(), Mode::Write) > 0
    }

    /// Why [`Tables::finish`] stored nothing; `None` when there is no row.
    pub fn obstacle(&self, outcome: &Outcome) -> Option<Obstacle> {
        self.first(Statement::Obstacle, &outcome.args(), Mode::Read, |row| Obstacle {
            status: row.text(0),
            attempt: row.int(1).unwrap_or(0),
            same_result: row.bool(2).unwrap_or(false),
            over_limit: row.int(3),
        })
    }

    /// Deletes this attempt's open claim; false when there is none.
    pub fn release(&self, scope: &Scope, attempt: i32) -> bool {
        let [tenant, endpoint, key] = scope_args(scope);
        self.run(Statement::Release, &[tenant, endpoint, key, Value::int(attempt)], Mode::Write) > 0
    }

    /// Stores a recovery point with this attempt's open claim; false when there is none.
    pub fn checkpoint(&self, scope: &Scope, attempt: i32, point: Value, state: Value) -> bool {
        let [tenant, endpoint, key] = scope_args(scope);
        let args = [tenant, endpoint, key, Value::int(attempt), point, state];
        self.run(Statement::Checkpoint, &args, Mode::Write) > 0
    }

    /// The status and attempt of the row, if there is one.
    pub fn state(&self, scope: &Scope, mode: Mode) -> Option<(String, i32)> {
        self.first(Statement::State, &scope_args(scope), mode, |row| (row.text(0), row.int(1).unwrap_or(0)))
    }

    /// Whether the row is a claim in progress that must not outlive its transaction.
    pub fn is_left_open(&self, scope: &Scope) -> bool {
        self.first(Statement::IsLeftOpen, &scope_args(scope), Mode::Read, |_| ()).is_some()
    }

    /// Deletes up to `max_rows` finished rows whose retention has ended, in expiry order, skipping locked ones, all
    /// that expired before `from`, and after that the first `skip`.
    pub fn sweep(&self, max_rows: i32, from: Option<TimestampWithTimeZone>, skip: i32) -> Vec<Swept> {
        self.rights.without_jit();
        let args = [Value::int(max_rows), Value::optional(from, Value::timestamptz), Value::int(skip)];
        self.all(Statement::Sweep, &args, Mode::Write, |row| Swept {
            endpoint: row.text(0),
            rows: row.bigint(1),
            latest: row.timestamptz(2),
        })
    }

    /// Whether the keys come from a publisher by logical replication, be it switched on or not.
    pub fn is_subscribed(&self) -> bool {
        find_table(self.schema, c"idempotency_keys").is_some_and(subscriptions::have)
    }

    /// The number of rows that a sweep would delete, counted up to `most`.
    pub fn count_due(&self, most: i32) -> i64 {
        self.first(Statement::CountDue, &[Value::int(most)], Mode::Read, |row| row.bigint(0)).unwrap_or(0)
    }

    /// The number of stuck claims of each endpoint that has some.
    pub fn count_stuck(&self) -> Vec<(String, i64)> {
        self.all(Statement::CountStuck, &[], Mode::Read, |row| (row.text(0), row.bigint(1)))
    }

    /// Up to `most` stuck claims, oldest first.
    pub fn stuck(&self, most: i32) -> Vec<StuckClaim> {
        self.all(Statement::Stuck, &[Value::int(most)], Mode::Read, |row| StuckClaim {
            scope: Scope { tenant: row.text(0), endpoint: row.text(1), key: row.text(2) },
            attempt: row.int(3).unwrap_or(0),
            open_for: row.text(4),
        })
    }

    /// Registers an endpoint, or replaces its registration; returns what its effect was before.
    pub fn register(&self, registration: &[Value; 10]) -> Option<String> {
        self.first(Statement::Register, registration, Mode::Write, |row| row.payload(0).is_some().then(|| row.text(0)))
            .flatten()
    }

    /// Removes an endpoint's registration; false when there is none.
    pub fn unregister(&self, endpoint: &str) -> bool {
        self.run(Statement::Unregister, &[Value::text(endpoint)], Mode::Write) > 0
    }

    /// The number of keys of an endpoint that are in progress or not expired. Reads the whole table.
    pub fn count_alive(&self, endpoint: &str) -> i64 {
        self.first(Statement::CountAlive, &[Value::text(endpoint)], Mode::Read, |row| row.bigint(0)).unwrap_or(0)
    }

    /// Hands out up to `most` stuck claims that nobody has leased, oldest first: a jsonb array of objects, or `None`.
    pub fn hand_out(&self, most: i32, lease: Interval, only_endpoint: Option<&str>) -> Option<Vec<u8>> {
        let args = [Value::int(most), Value::interval(lease), Value::optional(only_endpoint, Value::text)];
        self.first(Statement::HandOut, &args, Mode::Write, |row| row.payload(0)).flatten()
    }

    fn all<R>(&self, statement: Statement, args: &[Value], mode: Mode, read: impl FnMut(&Row) -> R) -> Vec<R> {
        self.spi.all(self.plan(statement), args, mode, read)
    }

    fn first<R>(&self, statement: Statement, args: &[Value], mode: Mode, read: impl FnOnce(&Row) -> R) -> Option<R> {
        self.spi.first(self.plan(statement), args, mode, read)
    }

    fn run(&self, statement: Statement, args: &[Value], mode: Mode) -> u64 {
        self.spi.run(self.plan(statement), args, mode)
    }

    fn plan(&self, statement: Statement) -> Plan {
        PLANS.with_borrow_mut(|plans| match plans {
            Some(plans) => {
                *plans.kept[statement as usize].get_or_insert_with(|| self.prepare(statement, &plans.schema_name))
            }
            None => self.prepare(statement, &name_of_schema(self.schema)),
        })
    }

    fn prepare(&self, statement: Statement, schema_name: &CStr) -> Plan {
        self.spi.prepare(&statement.sql(schema_name), statement.types(), statement.planning())
    }
}

impl NewClaim<'_> {
    fn args(&self) -> [Value; 7] {
        let [tenant, endpoint, key] = scope_args(self.scope);
        [
            tenant,
            endpoint,
            key,
            Value::payload(self.request_hash),
            Value::optional(self.provider_key, Value::uuid),
            Value::bool(self.may_stay_open),
            Value::interval(self.ttl),
        ]
    }
}

impl Outcome<'_> {
    fn args(&self) -> [Value; 10] {
        let [tenant, endpoint, key] = scope_args(self.scope);
        [
            tenant,
            endpoint,
            key,
            Value::text(self.status),
            Value::int(self.attempt),
            Value::int(self.response_code),
            self.response_headers,
            Value::optional(self.response_body, Value::payload),
            self.resource_ref,
            Value::int(self.max_body_bytes),
        ]
    }
}

fn scope_args(scope: &Scope) -> [Value; 3] {
    [Value::text(&scope.tenant), Value::text(&scope.endpoint), Value::text(&scope.key)]
}

/// The owner of `idempotency_keys`; `None` when the schema has no such table.
fn owner_of_keys(schema: pg_sys::Oid) -> Option<pg_sys::Oid> {
    let table = find_table(schema, c"idempotency_keys")?;
    // SAFETY: the relation is opened with a lock, as the statements will, and closed when dropped.
    unsafe {
        let keys = pgrx::PgRelation::with_lock(table, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        Some((*keys.rd_rel).relowner)
    }
}

/// A table in the extension's schema.
fn find_table(schema: pg_sys::Oid, name: &CStr) -> Option<pg_sys::Oid> {
    // SAFETY: a catalog look-up by name.
    let table = unsafe { pg_sys::get_relname_relid(name.as_ptr(), schema) };
    (table != pg_sys::InvalidOid).then_some(table)
}

/// Takes the locks that using the tables takes, until the transaction ends; false when that would have to wait.
/// Whoever holds them waits for no other session's lock on a table. Where one is missing, [`Tables::open`] has the
/// words for it.
pub fn try_lock(schema: pg_sys::Oid) -> bool {
    let find = || [find_table(schema, c"idempotency_endpoints"), find_table(schema, c"idempotency_keys")];
    let found = find();
    let [Some(endpoints), Some(keys)] = found else { return true };
    let modes = [pg_sys::AccessShareLock, pg_sys::RowExclusiveLock];
    // SAFETY: the lock manager takes any Oid; it processes invalidations once the lock is held.
    let locked = [endpoints, keys]
        .into_iter()
        .zip(modes)
        .all(|(table, mode)| unsafe { pg_sys::ConditionalLockRelationOid(table, mode as pg_sys::LOCKMODE) });
    // They may have been dropped before they were locked.
    locked && find() == found
}

/// The schema of the extension in the current database, for a process that no function call has told.
pub fn find_schema() -> Option<pg_sys::Oid> {
    let query = "SELECT extnamespace FROM pg_catalog.pg_extension \
                 WHERE extname OPERATOR(pg_catalog.=) 'idempotency_enforcer'";
    pgrx::Spi::get_one(query).ok().flatten()
}

/// Empties the table of plans when they belong to another schema, or to one that was renamed.
fn check_schema(schema: pg_sys::Oid) {
    let schema_name = name_of_schema(schema);
    PLANS.with_borrow_mut(|plans| {
        if plans.as_ref().is_some_and(|p| p.schema == schema && p.schema_name == schema_name) {
            return;
        }
        let stale = plans.replace(Plans { schema, schema_name, kept: [None; Statement::COUNT] });
        for plan in stale.into_iter().flat_map(|p| p.kept).flatten() {
            plan.free();
        }
    })
}

/// The schema's name, quoted where it needs to be, in the database's encoding.
fn name_of_schema(schema: pg_sys::Oid) -> CString {
    // SAFETY: the name, if the schema exists, is a palloc'd C string; quote_identifier returns it or a copy.
    unsafe {
        let name = pg_sys::get_namespace_name(schema);
        if name.is_null() {
            return CString::default();
        }
        CStr::from_ptr(pg_sys::quote_identifier(name)).to_owned()
    }
}
