//! The launcher: once a round, has each database visited, one after the other.

use super::trouble::Mark;
use super::{LEAST_BUDGET, LIBRARY};
use crate::pg::databases::{self, DatabaseEntry};
use crate::pg::process::{self, DatabaseLock};
use crate::pg::transaction;
use crate::{settings, stats};
use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime, DynamicBackgroundWorker,
};
use pgrx::prelude::*;
use pgrx::PgMemoryContexts;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long the launcher sleeps at most before it looks at its flags again.
const NAP: Duration = Duration::from_millis(1_000);

/// How long a visit may take beyond twice its budget before it is taken for hanging.
const GRACE: Duration = Duration::from_secs(30);

/// Entry point of the launcher process.
#[pg_guard]
#[no_mangle]
pub extern "C-unwind" fn idempotency_enforcer_launcher(_argument: pg_sys::Datum) {
    if process::is_binary_upgrade() {
        return; // and is not started again
    }
    process::handle_signals_between_steps();
    process::show_name(c"idempotency_enforcer launcher");
    process::connect_to_no_database();
    let mut launcher = Launcher { next_round: Instant::now(), no_slot_reported: false, logged: HashMap::new() };
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
    /// What the visitors have logged of databases where something is wrong.
    logged: HashMap<pg_sys::Oid, Mark>,
}

impl Launcher {
    fn round(&mut self, interval: Duration) {
        process::show_work("listing databases");
        let counted = stats::databases(); // before the list: one that is created meanwhile is not taken for dropped
        let all = process::transaction(databases::list);
        stats::forget_databases(counted.into_iter().filter(|oid| all.iter().all(|d| d.oid != *oid)));
        self.logged.retain(|oid, _| all.iter().any(|d| d.oid == *oid));
        let to_visit: Vec<&DatabaseEntry> =
            all.iter().filter(|d| d.can_be_visited && settings::is_swept(&d.name)).collect();
        let budget = (interval / to_visit.len().max(1) as u32).max(LEAST_BUDGET);
        for database in to_visit {
            process::show_work(&format!("waiting for the visit of database {:?}", database.name));
            self.have_visited(database, budget);
        }
    }

    /// Starts a visitor and waits for its end, holding the database in place.
    ///
    /// Not in a transaction: its snapshot would keep dead rows from being removed, in every database.
    fn have_visited(&mut self, database: &DatabaseEntry, budget: Duration) {
        let lock = DatabaseLock::of(database.oid);
        if !lock.try_in_session() {
            return; // somebody is dropping or copying it: perhaps next time
        }
        // It may have changed before the lock was taken.
        if process::transaction(|| databases::can_be_visited(database.oid)) {
            self.start_visitor(database.oid, budget);
        }
        lock.release_session();
    }

    fn start_visitor(&mut self, database: pg_sys::Oid, budget: Duration) {
        let logged = self.logged.remove(&database).unwrap_or_default();
        logged.leave(); // until the visitor knows better
        let visitor = BackgroundWorkerBuilder::new("idempotency_enforcer worker")
            .set_type("idempotency_enforcer worker")
            .set_library(LIBRARY)
            .set_function("idempotency_enforcer_visit")
            .set_argument(database.into_datum())
            .set_extra(&format!("{} {}", budget.as_millis(), logged.to_hex()))
            .set_start_time(BgWorkerStartTime::RecoveryFinished)
            .set_restart_time(None)
            .set_notify_pid(own_pid())
            .enable_spi_access();
        // What PostgreSQL allocates for the handle goes with this context.
        let mut memory = PgMemoryContexts::new("idempotency_enforcer visit");
        // SAFETY: nothing allocated in the closure outlives the context: the handle is used in this function only.
        let visitor = unsafe { memory.switch_to(|_| visitor.load_dynamic()) };
        match visitor {
            Ok(visitor) => {
                self.no_slot_reported = false;
                wait_for(visitor, budget * 2 + GRACE);
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
        if Mark::left() != Mark::default() {
            self.logged.insert(database, Mark::left());
        }
    }
}

/// Waits for the end of a visit, and puts an end to one that hangs: the other databases wait for their turn.
fn wait_for(visitor: DynamicBackgroundWorker, patience: Duration) {
    let since = Instant::now();
    loop {
        match visitor.pid() {
            Ok(_) | Err(BackgroundWorkerStatus::NotYetStarted) => {}
            Err(_) => return,
        }
        stop_if_asked();
        if since.elapsed() > patience {
            pg_sys::panic::ErrorReport::new(
                PgSqlErrorCode::ERRCODE_QUERY_CANCELED,
                format!("idempotency_enforcer: a visit is ended that hangs for {} s", since.elapsed().as_secs()),
                "idempotency_enforcer",
            )
            .set_hint("The line after this one names its process. A trigger on idempotency_keys may be waiting.")
            .report(PgLogLevel::LOG);
            visitor.terminate();
            return;
        }
        transaction::pause(NAP);
    }
}

fn own_pid() -> i32 {
    // SAFETY: a per-process value.
    unsafe { pg_sys::MyProcPid }
}
