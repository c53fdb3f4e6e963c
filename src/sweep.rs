//! `idem_sweep`: one bounded batch of the rows whose retention has ended.

use crate::pg::entry::{sql_function, Answer, Args};
use crate::refusal::Refusal;
use crate::stats::{self, Counter};
use crate::tables::Tables;

sql_function!("idem_sweep" => sweep);

/// Never an in_progress row, never one that somebody has locked.
fn sweep(args: &Args) -> Result<Answer, Refusal> {
    let Some(max_rows) = args.int(0).filter(|n| *n >= 0) else {
        return Err(Refusal::invalid(
            "max_rows must be zero or more",
            "A batch is bounded so that it holds its locks briefly.",
            "Pass the size of one batch, for example 10000, and call again while that many were deleted.",
        ));
    };
    let tables = Tables::open(args.schema())?;
    Ok(Answer::Int(batch(&tables, max_rows) as i32))
}

/// Sweeps one batch, counts it, and returns its size.
pub fn batch(tables: &Tables, max_rows: i32) -> i64 {
    let swept = tables.sweep(max_rows);
    for (endpoint, rows) in &swept {
        stats::add(endpoint, Counter::Swept, *rows as u64);
    }
    swept.iter().map(|(_, rows)| rows).sum()
}
