//! `idem_sweep`: one bounded batch of the rows whose retention has ended.

use crate::limits::SWEEP_ROWS;
use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::{process, tell};
use crate::refusal::Refusal;
use crate::stats::{self, Counter};
use crate::tables::{Table, Tables};
use pgrx::datum::TimestampWithTimeZone;
use std::cmp::Ordering;

sql_function!("idem_sweep" => sweep);

/// Never an in_progress row, never one that somebody has locked, never one that belongs to a publisher.
fn sweep(args: &Args) -> Result<Answer, Refusal> {
    let Some(max_rows) = args.int(0).filter(|n| (0..=SWEEP_ROWS).contains(n)) else {
        return Err(Refusal::invalid(
            format!("max_rows must be between zero and {SWEEP_ROWS}"),
            "A batch is bounded so that it holds its locks briefly.",
            "Pass the size of one batch, for example 10000, and call again while that many were deleted.",
        ));
    };
    if process::is_binary_upgrade() {
        return Ok(Answer::Int(0));
    }
    let tables = Tables::open(args.schema())?;
    tables.lock_for_writing(Table::Keys)?;
    match batch(&tables, max_rows, None, 0) {
        Some(batch) => Ok(Answer::Int(batch.rows as i32)),
        None => {
            drop(tables); // the client is told with its own settings
            tell::notice(
                "nothing is swept here: idempotency_keys belongs to a subscription, so the publisher sweeps it, and \
                 after DROP SUBSCRIPTION this server"
                    .to_owned(),
            );
            Ok(Answer::Int(0))
        }
    }
}

pub struct Batch {
    pub rows: i64,
    /// Where the next one may begin; `None` when this one is empty.
    pub end: Option<TimestampWithTimeZone>,
}

/// Sweeps one batch and counts it, passing over the first `skip` rows from `from` on.
///
/// `None` on a logical subscriber, where nothing may be swept: the rows are the publisher's, which deletes them there
/// and, by replication, here. Deleted here first, one that is taken over at the publisher might not come again.
pub fn batch(tables: &Tables, max_rows: i32, from: Option<TimestampWithTimeZone>, skip: i32) -> Option<Batch> {
    if tables.is_subscribed() {
        return None;
    }
    let swept = tables.sweep(max_rows, from, skip);
    for of in &swept {
        stats::add(&of.endpoint, Counter::Swept, of.rows as u64, || tables.is_registered(&of.endpoint));
    }
    Some(Batch {
        rows: swept.iter().map(|of| of.rows).sum(),
        end: swept.iter().filter_map(|of| of.latest).max_by(|a, b| a.partial_cmp(b).unwrap_or(Ordering::Equal)),
    })
}
