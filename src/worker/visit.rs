//! A visit: one process, one database, one round. It connects, looks, sweeps in bounded batches, reports, and leaves.

use super::trouble::{self, Mark, Trouble};
use super::LEAST_BUDGET;
use crate::pg::databases;
use crate::pg::process::{self, DatabaseLock};
use crate::pg::rights::Quiet;
use crate::refusal::Refusal;
use crate::stats::{self, Counter};
use crate::tables::{self, StuckClaim, Table, Tables};
use crate::{settings, sweep};
use pgrx::bgworkers::BackgroundWorker;
use pgrx::prelude::*;
use std::time::{Duration, Instant};

/// What remains after a round is counted up to this many rows.
const MOST_COUNTED: i64 = 100_000;

/// Batches that may fail in a round before the rest is left for the next: each is work for nothing.
const MOST_FAILURES: u32 = 100;

/// Entry point of a visitor. The argument is the database; `bgw_extra` is made by [`super::launcher`].
#[pg_guard]
#[no_mangle]
pub extern "C-unwind" fn idempotency_enforcer_visit(argument: pg_sys::Datum) {
    // SAFETY: the launcher passes an Oid.
    let database = unsafe { pg_sys::Oid::from_datum(argument, false) }.unwrap_or(pg_sys::InvalidOid);
    let (budget, logged) = BackgroundWorker::get_extra().split_once(' ').unwrap_or_default();
    let budget = Duration::from_millis(budget.parse().unwrap_or(1_000));
    process::handle_signals_at_once();
    process::show_name(c"idempotency_enforcer worker");
    // Connecting waits for this lock, and would fail with a line in the log if the database were dropped meanwhile.
    let lock = DatabaseLock::of(database);
    if process::is_binary_upgrade() || !lock.try_in_session() {
        return;
    }
    process::connect_to(database);
    lock.release_session();
    visit(budget, Mark::from_hex(logged));
    process::report_statistics();
}

fn visit(budget: Duration, logged: Mark) {
    let started = Instant::now();
    process::show_work("looking for stuck claims and expired keys");
    let Some(home) = process::transaction(find_home) else { return };
    let (mut troubles, mut interrupted) = (Vec::new(), false);
    // On a subscriber the rows are the publisher's, and so are their troubles.
    let look = |tables: &Tables| (!tables.is_subscribed()).then(|| tables.count_due(1) > 0);
    match home.quietly("nothing can be done", look) {
        Ok(None) => return,
        Ok(Some(None)) => {}
        Ok(Some(Some(sweep_is_due))) => {
            if sweep_is_due {
                let sweep = sweep_and_tell(&home, started, budget);
                interrupted = sweep.interruption.is_some();
                troubles.extend(sweep.trouble);
            }
            // After the sweep, and in a transaction of its own: whatever is wrong with one, the other is done.
            let report = |tables: &Tables| report_stuck(tables, &home.database);
            troubles.extend(home.quietly("stuck claims cannot be reported", report).err());
        }
        Err(trouble) => troubles.push(trouble),
    }
    process::transaction(|| {
        // One that was interrupted may not have come to the trouble that was logged; one whose extension is gone has
        // none.
        let is_known =
            if troubles.is_empty() { !interrupted } else { find_home().is_some_and(|h| h.schema == home.schema) };
        if is_known {
            trouble::report((process::own_database(), &home.database), &troubles, logged);
        }
    });
    stats::round_is_over(started.elapsed());
}

/// Where the extension lives in this database.
struct Home {
    database: String,
    schema: pg_sys::Oid,
}

/// `None` when there is no extension, or somebody wants the database gone.
fn find_home() -> Option<Home> {
    let own = process::own_database();
    if !DatabaseLock::of(own).try_in_transaction() || !databases::can_be_visited(own) {
        return None;
    }
    let _quiet = Quiet::new();
    let schema = tables::find_schema()?;
    Some(Home { database: process::own_database_name(), schema })
}

impl Home {
    /// Uses the tables, in a transaction of its own; `None` when somebody holds or awaits a lock that would make us
    /// wait: then it is time to leave.
    fn attempt<R>(&self, what: &'static str, work: impl FnOnce(&Tables) -> R) -> Result<Option<R>, Trouble> {
        self.attempt_under(|| (), what, work)
    }

    /// The same, leaving no trace of its statements.
    fn quietly<R>(&self, what: &'static str, work: impl FnOnce(&Tables) -> R) -> Result<Option<R>, Trouble> {
        self.attempt_under(Quiet::new, what, work)
    }

    fn attempt_under<G, R>(
        &self,
        guard: fn() -> G,
        what: &'static str,
        work: impl FnOnce(&Tables) -> R,
    ) -> Result<Option<R>, Trouble> {
        let attempted = process::attempt(|| -> Result<Option<R>, Refusal> {
            if !DatabaseLock::of(process::own_database()).try_in_transaction() || !tables::try_lock(self.schema) {
                return Ok(None);
            }
            let _guard = guard();
            let tables = Tables::open(self.schema)?;
            tables.lock_for_writing(Table::Keys)?;
            Ok(Some(work(&tables)))
        });
        match attempted {
            Ok(answer) => answer.map_err(|refusal| Trouble::refused(what, refusal)),
            Err(failure) => Err(Trouble::caught(what, failure)),
        }
    }
}

/// Sweeps, and logs what was swept.
fn sweep_and_tell(home: &Home, started: Instant, budget: Duration) -> Sweep {
    process::show_work("sweeping expired keys");
    let mut sweep = Sweep::default();
    sweep.interruption = sweep.run(home, started, budget);
    if sweep.rows > 0 {
        let left = sweep.interruption.map_or_else(|| count_left(home), str::to_owned);
        log!(
            "idempotency_enforcer: swept {} expired keys of database {:?} in {:.1} s, {left}",
            sweep.rows,
            home.database,
            started.elapsed().as_secs_f64()
        );
    }
    sweep
}

const MADE_WAY: &str = "interrupted by another session's lock";

fn count_left(home: &Home) -> String {
    match home.attempt("what is left cannot be counted", |tables| tables.count_due(MOST_COUNTED as i32)) {
        Err(_) => "what remains is not known".to_owned(),
        Ok(None) => MADE_WAY.to_owned(),
        Ok(Some(0)) => "none remain".to_owned(),
        Ok(Some(n)) if n >= MOST_COUNTED => format!("at least {n} remain"),
        Ok(Some(n)) => format!("{n} remain"),
    }
}

/// The sweep of one round.
#[derive(Default)]
struct Sweep {
    /// Deleted so far.
    rows: i64,
    /// The first that happened.
    trouble: Option<Trouble>,
    /// What has ended it early.
    interruption: Option<&'static str>,
}

impl Sweep {
    /// Sweeps batch by batch; returns what has interrupted it, if something has.
    ///
    /// A batch that fails is tried again with half its rows, down to one, which is passed over; after a success the
    /// batches grow again. So a row that cannot be deleted keeps others no longer than it must.
    fn run(&mut self, home: &Home, started: Instant, budget: Duration) -> Option<&'static str> {
        let (mut from, mut skip, mut failures, mut size) = (None, 0, 0, i32::MAX);
        loop {
            process::reload_if_asked();
            let Some(interval) = settings::sweep_interval().filter(|_| settings::is_swept(&home.database)) else {
                return Some("interrupted by a change of the settings");
            };
            size = size.min(settings::sweep_batch_size());
            let batch = home.attempt("expired keys cannot be deleted", |tables| sweep::batch(tables, size, from, skip));
            process::report_statistics();
            match batch {
                Ok(None) => return Some(MADE_WAY),
                Ok(Some(None)) => return Some("interrupted by a subscription"),
                Ok(Some(Some(batch))) => {
                    self.rows += batch.rows;
                    if batch.rows < i64::from(size) {
                        return None;
                    }
                    if skip == 0 {
                        from = batch.end.or(from); // or the next would pass over other rows than these
                    }
                    size = size.saturating_mul(2);
                }
                Err(trouble) => {
                    failures += 1;
                    let give_up = !trouble.is_of_a_row() || failures >= MOST_FAILURES;
                    self.trouble.get_or_insert(trouble);
                    if give_up {
                        return None;
                    }
                    match size {
                        1 => skip += 1,
                        _ => size /= 2,
                    }
                }
            }
            if started.elapsed() >= budget.min(interval.max(LEAST_BUDGET)) {
                return None;
            }
        }
    }
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
