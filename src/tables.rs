//! The extension's tables, opened with their owner's rights, and every statement against them.
//!
//! Each statement names `tenant_id` where it touches single rows, so that the table can be distributed or partitioned by it.

use crate::fingerprint::Fingerprint;
use crate::pg::rights::OwnerRights;
use crate::pg::spi::{Mode, Row, Spi};
use crate::pg::value::Value;
use crate::pg::{subscriptions, transaction};
use crate::refusal::Refusal;
use crate::scope::Scope;
use crate::status::Status;
use crate::verdict::{judge, Facts, Verdict};
use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::pg_sys::{self, BuiltinOid};
use std::cell::Cell;

mod model;
mod opening;
mod plans;
mod reports;
mod returns;
mod statements;

pub use model::*;
use opening::Found;
pub use opening::{try_lock, Table};
use plans::{InUse, Schema};
pub use reports::{lock_to_read, try_lock_to_read};
use statements::Statement;

/// The extension's tables, opened with their owner's rights for the length of one call.
pub struct Tables {
    // Dropped in this order: SPI is left first, then the caller's rights come back, then plans may be freed.
    spi: Spi,
    rights: OwnerRights,
    found: Found,
    schema: Schema,
    writable: Cell<bool>,
    _plans: InUse,
}

impl Tables {
    /// Opens the tables in the extension's schema for reading; `55000` when they are not there, or when using them would run
    /// code that must not run with their owner's rights.
    pub fn open(schema: pg_sys::Oid) -> Result<Self, Refusal> {
        let found = Found::locked(schema)?;
        let owner = found.trusted_owner()?;
        let plans = InUse::begin();
        let rights = OwnerRights::assume(owner);
        let spi = Spi::connect(vec![found.keys, found.endpoints]);
        Ok(Tables { spi, rights, found, schema: Schema::named(schema), writable: Cell::new(false), _plans: plans })
    }

    /// Opens the tables for writing one of them. `scope` is what an error names.
    pub fn open_for_writing(schema: pg_sys::Oid, scope: &Scope) -> Result<Self, Refusal> {
        let tables = Tables::open(schema)?;
        tables.for_writing(scope)?;
        Ok(tables)
    }

    /// Must come before a statement that writes `idempotency_keys`: locks it, so that it stays as trusted as it is.
    /// `25006` where nothing can be written.
    pub fn for_writing(&self, scope: &Scope) -> Result<(), Refusal> {
        if transaction::is_read_only() {
            return Err(Refusal::read_only(scope));
        }
        self.lock_for_writing(Table::Keys)
    }

    /// As [`Tables::for_writing`], for calls that are about no single key; PostgreSQL itself refuses to write where nothing
    /// can be written.
    pub fn lock_for_writing(&self, table: Table) -> Result<(), Refusal> {
        if !self.writable.replace(true) {
            self.found.lock_for_writing(table);
            self.found.trusted_owner()?;
        }
        Ok(())
    }

    /// Whether a trigger may swallow what is written.
    pub fn has_triggers(&self) -> bool {
        self.found.has_triggers()
    }

    pub fn schema(&self) -> pg_sys::Oid {
        self.schema.oid
    }

    /// The call that registers an endpoint, as SQL.
    pub fn call_to_register(&self, endpoint: &str) -> String {
        self.schema.call_to_register(endpoint)
    }

    /// What the stored row means for this request. Takes no lock and writes nothing.
    pub fn look_up(&self, scope: &Scope, fingerprint: &Fingerprint, mode: Mode) -> Seen {
        let [tenant, endpoint, key] = scope_args(scope);
        let read = |row: &Row| {
            let state = row.state(0, 3);
            let (expired, same_request) = (row.bool(1).unwrap_or(false), row.bool(2).unwrap_or(false));
            let verdict = judge(Some(Facts { status: state.status, expired, same_request }));
            let version = Version {
                status: state.status,
                attempt: state.attempt,
                same_request,
                created_at: row.timestamptz(4),
                completed_at: row.timestamptz(5),
                erased_at: row.timestamptz(6),
            };
            let response = (verdict == Verdict::Replay && mode != Mode::ReadLatest).then(|| Response {
                code: row.int(7),
                headers: row.kept(8),
                body: row.kept(9),
                resource_ref: row.kept(10),
                attempt: Some(state.attempt),
                provider_key: row.uuid(11),
                expires_at: row.timestamptz(12),
            });
            Seen { verdict, version: Some(version), response }
        };
        let args = [tenant, endpoint, key, Value::payload(fingerprint)];
        let absent = || Seen { verdict: judge(None), version: None, response: None };
        self.first(Statement::LookUp, &args, mode, read).unwrap_or_else(absent)
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

    /// Whether the endpoint is registered.
    pub fn is_registered(&self, endpoint: &str) -> bool {
        self.endpoint(endpoint).is_some()
    }

    /// Inserts the claim; `None` when the key is there already.
    pub fn insert(&self, claim: &NewClaim) -> Option<Claimed> {
        self.first(Statement::Insert, &claim.args(), Mode::Write, claimed).flatten()
    }

    /// Puts the claim in the place of a tombstone, or of an expired, finished row; `None` when there is none or it is locked.
    pub fn take_over(&self, claim: &NewClaim) -> Option<Claimed> {
        self.first(Statement::TakeOver, &claim.args(), Mode::Write, claimed).flatten()
    }

    /// Stores a result; false when the row is not this attempt's open claim or the body is over the limit.
    pub fn finish(&self, outcome: &Outcome) -> bool {
        self.run(Statement::Finish, &outcome.args(), Mode::Write) > 0
    }

    /// Why [`Tables::finish`] stored nothing; `None` when there is no row.
    pub fn obstacle(&self, outcome: &Outcome) -> Option<Obstacle> {
        self.first(Statement::Obstacle, &outcome.args(), Mode::Read, |row| Obstacle {
            state: row.state(0, 1),
            same_result: row.bool(2).unwrap_or(false),
            over_limit: row.int(3),
        })
    }

    /// Makes this attempt's open claim a tombstone with the number `left`; false when there is no such claim.
    pub fn release(&self, scope: &Scope, attempt: i32, left: i32) -> bool {
        let [tenant, endpoint, key] = scope_args(scope);
        let args = [tenant, endpoint, key, Value::int(attempt), Value::int(left)];
        self.run(Statement::Release, &args, Mode::Write) > 0
    }

    /// Deletes this attempt's open claim; false when there is none.
    pub fn delete_claim(&self, scope: &Scope, attempt: i32) -> bool {
        let [tenant, endpoint, key] = scope_args(scope);
        self.run(Statement::DeleteClaim, &[tenant, endpoint, key, Value::int(attempt)], Mode::Write) > 0
    }

    /// Makes a finished row a tombstone; false when there is none.
    pub fn forget(&self, scope: &Scope) -> bool {
        self.run(Statement::Forget, &scope_args(scope), Mode::Write) > 0
    }

    /// Blanks the stored answers of finished rows and tombstones of a tenant; returns how many it has blanked.
    pub fn erase(&self, tenant: &str, endpoint: Option<&str>, key: Option<&str>) -> i64 {
        let args = [Value::text(tenant), Value::optional(endpoint, Value::text), Value::optional(key, Value::text)];
        self.first(Statement::Erase, &args, Mode::Write, |row| row.bigint(0)).unwrap_or(0)
    }

    /// Stores a recovery point with this attempt's open claim; false when there is none.
    pub fn checkpoint(&self, scope: &Scope, attempt: i32, point: Value, state: Value) -> bool {
        let [tenant, endpoint, key] = scope_args(scope);
        let args = [tenant, endpoint, key, Value::int(attempt), point, state];
        self.run(Statement::Checkpoint, &args, Mode::Write) > 0
    }

    /// The status and attempt of the row, if there is one.
    pub fn state(&self, scope: &Scope) -> Option<State> {
        self.first(Statement::State, &scope_args(scope), Mode::Read, |row| row.state(0, 1))
    }

    /// The same as it is committed now, whatever the transaction's snapshot shows.
    pub fn latest_state(&self, scope: &Scope) -> Option<State> {
        self.first(Statement::State, &scope_args(scope), Mode::ReadLatest, |row| row.state(0, 1))
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
        subscriptions::have(self.found.keys)
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
    /// `None` when nothing was written.
    pub fn register(&self, registration: &[Value; 10]) -> Option<Option<String>> {
        self.first(Statement::Register, registration, Mode::Write, |row| (!row.is_null(0)).then(|| row.text(0)))
    }

    /// Removes an endpoint's registration; false when there is none.
    pub fn unregister(&self, endpoint: &str) -> bool {
        self.run(Statement::Unregister, &[Value::text(endpoint)], Mode::Write) > 0
    }

    /// The number of keys of an endpoint that are in progress or not expired. Reads the whole table.
    pub fn count_alive(&self, endpoint: &str) -> i64 {
        self.first(Statement::CountAlive, &[Value::text(endpoint)], Mode::Read, |row| row.bigint(0)).unwrap_or(0)
    }

    /// Hands out up to `most` stuck claims that nobody has leased, each as a row of values to `each`. Endpoints take turns;
    /// of one endpoint those that were never handed out come first, then those whose lease ran out longest ago.
    pub fn hand_out(&self, most: i32, lease: Interval, only_endpoint: Option<&str>, mut each: impl FnMut([Value; 8])) {
        let args = [Value::int(most), Value::interval(lease), Value::optional(only_endpoint, Value::text)];
        self.all(Statement::HandOut, &args, Mode::Write, |row| each(std::array::from_fn(|column| row.value(column))));
    }

    fn all<R>(&self, statement: Statement, args: &[Value], mode: Mode, read: impl FnMut(&Row) -> R) -> Vec<R> {
        self.check_mode(mode);
        self.spi.all(plans::get(&self.spi, &self.schema, statement), args, mode, read)
    }

    fn first<R>(&self, statement: Statement, args: &[Value], mode: Mode, read: impl FnOnce(&Row) -> R) -> Option<R> {
        self.check_mode(mode);
        self.spi.first(plans::get(&self.spi, &self.schema, statement), args, mode, read)
    }

    fn run(&self, statement: Statement, args: &[Value], mode: Mode) -> u64 {
        self.check_mode(mode);
        self.spi.run(plans::get(&self.spi, &self.schema, statement), args, mode)
    }

    fn check_mode(&self, mode: Mode) {
        assert!(mode != Mode::Write || self.writable.get(), "a table is written that was opened for reading");
    }
}

impl Row {
    fn state(&self, status: usize, attempt: usize) -> State {
        // A row that the table's constraint would not have let in is taken for an open claim: nothing runs again.
        let status = Status::of(self.text(status).as_bytes()).unwrap_or(Status::InProgress);
        State { status, attempt: self.int(attempt).unwrap_or(0) }
    }
}

fn claimed(row: &Row) -> Option<Claimed> {
    Some(Claimed { attempt: row.int(0)?, expires_at: row.timestamptz(1)? })
}

impl NewClaim<'_> {
    fn args(&self) -> [Value; 7] {
        let [tenant, endpoint, key] = scope_args(self.scope);
        [
            tenant,
            endpoint,
            key,
            Value::payload(self.fingerprint),
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
            Value::text(self.status.name()),
            Value::int(self.attempt),
            Value::int(self.response_code),
            self.response_headers,
            self.response_body,
            self.resource_ref,
            Value::int(self.max_body_bytes),
        ]
    }
}

fn scope_args(scope: &Scope) -> [Value; 3] {
    [Value::text(&scope.tenant), Value::text(&scope.endpoint), Value::text(&scope.key)]
}

/// The schema of the extension in the current database, for a process that no function call has told.
pub fn find_schema() -> Option<pg_sys::Oid> {
    let query = "SELECT extnamespace FROM pg_catalog.pg_extension \
                 WHERE extname OPERATOR(pg_catalog.=) 'idempotency_enforcer'";
    pgrx::Spi::get_one(query).ok().flatten()
}
