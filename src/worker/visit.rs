//! A visit: one process, one database, one round. It connects, looks, sweeps in bounded batches, and leaves.

use crate::pg::process::{self, DatabaseLock};
use crate::pg::rights::Quiet;
use crate::stats::{self, Counter};
use crate::tables::{self, StuckClaim, Tables};
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
    let mut swept = 0;
    let mut remaining = None;
    if home.sweep_is_due {
        process::show_work("sweeping expired keys");
        loop {
            let batch = process::transaction(|| sweep_batch(&home));
            process::report_statistics();
            let Some(deleted) = batch else { break };
            swept += deleted;
            if deleted < i64::from(settings::sweep_batch_size()) {
                break;
            }
            if started.elapsed() >= budget {
                remaining =
                    process::transaction(|| open_unless_wanted(&home).map(|t| t.count_due(MOST_COUNTED as i32)));
                break;
            }
        }
    }
    let took = started.elapsed();
    stats::round_is_over(took);
    if swept > 0 {
        let remaining = match remaining {
            None | Some(0) => "none remain".to_owned(),
            Some(n) if n >= MOST_COUNTED => format!("at least {n} remain"),
            Some(n) => format!("{n} remain"),
        };
        log!(
            "idempotency_enforcer: swept {swept} expired keys of database {:?} in {:.1} s, {remaining}",
            process::transaction(process::own_database_name),
            took.as_secs_f64()
        );
    }
}

/// Where the extension lives in this database, and what there is to do.
struct Home {
    schema: pg_sys::Oid,
    keys: pg_sys::Oid,
    sweep_is_due: bool,
}

/// Looks around without leaving a trace where there is nothing to do; `None` when there is no extension, or somebody
/// wants it or the database gone.
fn look() -> Option<Home> {
    if !DatabaseLock::of(process::own_database()).try_in_transaction() {
        return None;
    }
    let _quiet = Quiet::new();
    let schema = tables::find_schema()?;
    let mut home = Home { schema, keys: tables::find_keys(schema)?, sweep_is_due: false };
    let tables = open_unless_wanted(&home)?;
    home.sweep_is_due = tables.count_due(1) > 0;
    report_stuck(&tables);
    Some(home)
}

fn sweep_batch(home: &Home) -> Option<i64> {
    let tables = open_unless_wanted(home)?;
    Some(sweep::batch(&tables, settings::sweep_batch_size()))
}

/// Opens the tables unless somebody holds or awaits a lock that would make us wait: then it is time to leave.
fn open_unless_wanted(home: &Home) -> Option<Tables> {
    let free = DatabaseLock::of(process::own_database()).try_in_transaction() && tables::try_lock_keys(home.keys);
    // It may have been dropped before the lock was taken.
    (free && tables::find_keys(home.schema) == Some(home.keys)).then(|| Tables::open(home.schema).ok()).flatten()
}

fn report_stuck(tables: &Tables) {
    let by_endpoint = tables.count_stuck();
    for (endpoint, n) in &by_endpoint {
        stats::add(endpoint, Counter::StuckSeen, *n as u64);
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
        &format!(
            "idempotency_enforcer: {total} stuck claims in database {:?}, {} of them shown",
            process::own_database_name(),
            shown.len()
        ),
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
