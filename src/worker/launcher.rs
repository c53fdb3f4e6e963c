//! The launcher: once a round, has each database visited, one after the other.

use super::LIBRARY;
use crate::pg::databases::{self, DatabaseEntry};
use crate::pg::process::{self, DatabaseLock};
use crate::pg::transaction;
use crate::{settings, stats};
use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime, DynamicBackgroundWorker,
};
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// How long the launcher sleeps at most before it looks at its flags again.
const NAP: Duration = Duration::from_millis(1_000);
/// The least time that a database is given in a round.
const LEAST_BUDGET: Duration = Duration::from_secs(1);

/// Entry point of the launcher process.
#[pg_guard]
#[no_mangle]
pub extern "C-unwind" fn idempotency_enforcer_launcher(_argument: pg_sys::Datum) {
    process::handle_signals_between_steps();
    process::connect_to_no_database();
    process::show_name(c"idempotency_enforcer launcher");
    let mut launcher = Launcher { next_round: Instant::now(), no_slot_reported: false };
    loop {
        stop_if_asked();
        process::reload_if_asked();
        match settings::sweep_interval() {
            None => launcher.next_round = Instant::now(), // when turned on again, at once
            Some(interval) => {
                let now = Instant::now();
                launcher.next_round = launcher.next_round.min(now + interval); // a reload may have shortened it
                if now >= launcher.next_round {
                    launcher.next_round = now + interval;
                    launcher.round(interval);
                    continue;
                }
            }
        }
        process::show_idle();
        transaction::pause(launcher.next_round.saturating_duration_since(Instant::now()).clamp(NAP / 100, NAP));
    }
}

/// Ends quietly, with a code that has the postmaster start the launcher again unless it is shutting down.
fn stop_if_asked() {
    if BackgroundWorker::sigterm_received() {
        process::exit(1);
    }
}

struct Launcher {
    next_round: Instant,
    /// So that a server without a free slot gets one line, not one a round.
    no_slot_reported: bool,
}

impl Launcher {
    fn round(&mut self, interval: Duration) {
        process::show_work("listing databases");
        let all = process::transaction(databases::list);
        stats::forget_other_databases(&all.iter().map(|d| d.oid).collect::<Vec<_>>());
        let wanted = settings::databases();
        let to_visit: Vec<&DatabaseEntry> =
            all.iter().filter(|d| d.can_be_visited && (wanted.is_empty() || wanted.contains(&d.name))).collect();
        let budget = (interval / to_visit.len().max(1) as u32).max(LEAST_BUDGET);
        for database in to_visit {
            process::show_work(&format!("waiting for the visit of database {:?}", database.name));
            process::transaction(|| self.have_visited(database, budget));
        }
    }

    /// Starts a visitor and waits for its end, in a transaction that holds the database in place.
    fn have_visited(&mut self, database: &DatabaseEntry, budget: Duration) {
        if !DatabaseLock::of(database.oid).try_in_transaction() {
            return; // somebody is dropping or copying it: perhaps next time
        }
        // It may have changed before the lock was taken.
        if !databases::list().iter().any(|d| d.oid == database.oid && d.can_be_visited) {
            return;
        }
        let visitor = BackgroundWorkerBuilder::new("idempotency_enforcer worker")
            .set_type("idempotency_enforcer worker")
            .set_library(LIBRARY)
            .set_function("idempotency_enforcer_visit")
            .set_argument(database.oid.into_datum())
            .set_extra(&budget.as_millis().to_string())
            .set_start_time(BgWorkerStartTime::RecoveryFinished)
            .set_restart_time(None)
            .set_notify_pid(own_pid())
            .enable_spi_access()
            .load_dynamic();
        match visitor {
            Ok(visitor) => {
                self.no_slot_reported = false;
                wait_for(&visitor);
            }
            Err(_) if !self.no_slot_reported => {
                self.no_slot_reported = true;
                pg_sys::panic::ErrorReport::new(
                    PgSqlErrorCode::ERRCODE_CONFIGURATION_LIMIT_EXCEEDED,
                    "idempotency_enforcer: no background worker slot is free",
                    "idempotency_enforcer",
                )
                .set_hint("Expired keys stay until one is. Raise max_worker_processes.")
                .report(PgLogLevel::LOG);
            }
            Err(_) => {}
        }
    }
}

fn wait_for(visitor: &DynamicBackgroundWorker) {
    loop {
        match visitor.pid() {
            Ok(_) | Err(BackgroundWorkerStatus::NotYetStarted) => {}
            Err(_) => return,
        }
        stop_if_asked();
        transaction::pause(NAP);
    }
}

fn own_pid() -> i32 {
    // SAFETY: a per-process value.
    unsafe { pg_sys::MyProcPid }
}
