//! `idem_reconcile`: hands out stuck claims, each to one reconciler.

use crate::limits::{LONGEST_LEASE, NAME_BYTES};
use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::rows::Rows;
use crate::pg::{transaction, value};
use crate::refusal::Refusal;
use crate::tables::{Table, Tables};

sql_function!("idem_reconcile" => reconcile);

/// Positions of the arguments in `sql/reconcile.sql`.
mod arg {
    pub const MAX_CLAIMS: usize = 0;
    pub const LEASE: usize = 1;
    pub const ONLY_ENDPOINT: usize = 2;
}

fn reconcile(args: &Args) -> Result<Answer, Refusal> {
    let shown = |n: Option<i32>| n.map_or("null".to_owned(), |n| n.to_string());
    let Some(most) = args.int(arg::MAX_CLAIMS).filter(|n| *n >= 1) else {
        return Err(Refusal::invalid(
            "max_claims must be 1 or more",
            format!("It is {}.", shown(args.int(arg::MAX_CLAIMS))),
            "Pass how many claims this reconciler can settle before the lease runs out.",
        ));
    };
    let lease = args.interval(arg::LEASE);
    let Some(lease) = lease.filter(|l| (1..=LONGEST_LEASE.as_micros() as i128).contains(&l.as_micros())) else {
        return Err(Refusal::invalid(
            "lease must be above zero and at most a day",
            format!("It is {}.", lease.map_or("null".to_owned(), value::interval_text)),
            "Pass the time in which the claims will be settled; when it has run out, others may take them.",
        ));
    };
    let only_endpoint = args.text(arg::ONLY_ENDPOINT, NAME_BYTES).map_err(|bad| bad.of("only_endpoint"))?;
    let rows = Rows::begin(args)?;
    let tables = Tables::open(args.schema())?;
    tables.lock_for_writing(Table::Keys)?;
    let mut handed_out = false;
    tables.hand_out(most, lease, only_endpoint.as_deref(), |claim| {
        handed_out = true;
        rows.put(claim);
    });
    if handed_out {
        transaction::force_durable_commit();
    }
    Ok(Answer::Rows)
}
