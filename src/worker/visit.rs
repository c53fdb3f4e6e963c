//! A visit: one process, one database, one round. It connects, looks, sweeps in bounded batches, and leaves.

use super::LEAST_BUDGET;
use crate::pg::databases;
use crate::pg::process::{self, DatabaseLock};
use crate::pg::rights::Quiet;
use crate::stats::{self, Counter};
use crate::tables::{self, StuckClaim, Table, Tables};
use crate::{settings, sweep};
use pgrx::bgworkers::BackgroundWorker;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// What remains after a round is counted up to this many rows.
const MOST_COUNTED: i64 = 100_000;

/// Entry point of a visitor. The argument is the database, `bgw_extra` the time that it may take, in milliseconds.
#[pg_guard]
#[no_mangle]
pub extern "C-unwind" fn idempotency_enforcer_visit(argument: pg_sys::Datum) {
    // SAFETY: the launcher passes an Oid.
    let database = unsafe { pg_sys::Oid::from_datum(argument, false) }.unwrap_or(pg_sys::InvalidOid);
    let budget = Duration::from_millis(BackgroundWorker::get_extra().parse().unwrap_or(1_000));
    process::handle_signals_at_once();
    // Connecting waits for this lock, and would fail with a line in the log if the database were dropped meanwhile.
    let lock = DatabaseLock::of(database);
    if !lock.try_in_session() {
        return;
    }
    process::connect_to(database);
    lock.release_session();
    process::show_name(c"idempotency_enforcer worker");
    visit(budget);
    process::report_statistics();
}

fn visit(budget: Duration) {
    let started = Instant::now();
    process::show_work("looking for stuck claims and expired keys");
    let Some(home) = process::transaction(look) else { return };
    if home.sweep_is_due {
        process::show_work("sweeping expired keys");
        let (rows, left) = sweep(&home, started, budget);
        if rows > 0 {
            log!(
                "idempotency_enforcer: swept {rows} expired keys of database {:?} in {:.1} s, {left}",
                home.database,
                started.elapsed().as_secs_f64()
            );
        }
    }
    stats::round_is_over(started.elapsed());
}

/// Where the extension lives in this database, and what there is to do.
struct Home {
    database: String,
    schema: pg_sys::Oid,
    sweep_is_due: bool,
}

/// Looks around without leaving a trace where there is nothing to do; `None` when there is no extension, or somebody
/// wants it or the database gone.
fn look() -> Option<Home> {
    let own = process::own_database();
    if !DatabaseLock::of(own).try_in_transaction() || !databases::can_be_visited(own) {
        return None;
    }
    let _quiet = Quiet::new();
    let schema = tables::find_schema()?;
    let database = process::own_database_name();
    with_tables(schema, |tables| {
        report_stuck(tables, &database);
        tables.count_due(1) > 0
    })
    .map(|sweep_is_due| Home { database, schema, sweep_is_due })
}

/// Sweeps batch by batch. Returns the number of rows deleted, and in words what is left.
fn sweep(home: &Home, started: Instant, budget: Duration) -> (i64, String) {
    const MADE_WAY: &str = "interrupted by another session's lock";
    let (mut rows, mut from) = (0, None);
    loop {
        process::reload_if_asked();
        let Some(interval) = settings::sweep_interval().filter(|_| settings::is_swept(&home.database)) else {
            return (rows, "interrupted by a change of the settings".to_owned());
        };
        let most = settings::sweep_batch_size();
        let batch = process::transaction(|| with_tables(home.schema, |tables| sweep::batch(tables, most, from)));
        process::report_statistics();
        let Some(batch) = batch else { return (rows, MADE_WAY.to_owned()) };
        rows += batch.rows;
        from = batch.end.or(from);
        if batch.rows < i64::from(most) || started.elapsed() >= budget.min(interval.max(LEAST_BUDGET)) {
            break;
        }
    }
    let left = match process::transaction(|| with_tables(home.schema, |tables| tables.count_due(MOST_COUNTED as i32))) {
        None => MADE_WAY.to_owned(),
        Some(0) => "none remain".to_owned(),
        Some(n) if n >= MOST_COUNTED => format!("at least {n} remain"),
        Some(n) => format!("{n} remain"),
    };
    (rows, left)
}

/// Uses the tables unless somebody holds or awaits a lock that would make us wait: then it is time to leave.
fn with_tables<R>(schema: pg_sys::Oid, work: impl FnOnce(&Tables) -> R) -> Option<R> {
    if !DatabaseLock::of(process::own_database()).try_in_transaction() || !tables::try_lock(schema) {
        return None;
    }
    let tables = Tables::open(schema).ok()?;
    tables.lock_for_writing(Table::Keys).ok()?;
    Some(work(&tables))
}

fn report_stuck(tables: &Tables, database: &str) {
    let by_endpoint = tables.count_stuck();
    for (endpoint, n) in &by_endpoint {
        stats::add(endpoint, Counter::StuckSeen, *n as u64, || tables.is_registered(endpoint));
    }
    let total: i64 = by_endpoint.iter().map(|(_, n)| n).sum();
    if total == 0 {
        return;
    }
    let shown = tables.stuck(settings::stuck_log_limit());
    for claim in &shown {
        warn(&describe(claim), &claim.advice());
    }
    warn(
        &format!("idempotency_enforcer: {total} stuck claims in database {database:?}, {} of them shown", shown.len()),
        "See the view idem_stuck.",
    );
}

fn describe(claim: &StuckClaim) -> String {
    format!(
        "idempotency_enforcer: claim of key {:?} on endpoint {:?} of tenant {:?} is open for {} at attempt {}",
        claim.scope.key, claim.scope.endpoint, claim.scope.tenant, claim.open_for, claim.attempt
    )
}

impl StuckClaim {
    fn advice(&self) -> String {
        format!(
            "Find out whether the effect happened, then call idem_complete, idem_fail or idem_release with attempt => {}.",
            self.attempt
        )
    }
}

/// A WARNING with a HINT; nothing of it is a body.
fn warn(message: &str, hint: &str) {
    pg_sys::panic::ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, message.to_owned(), "idempotency_enforcer")
        .set_hint(hint)
        .report(PgLogLevel::WARNING);
}
