//! The parts of `idem_protect`, `idem_unprotect` and `idem_reconcile` that touch the tables, with their owner's rights.
//!
//! The functions that people call are in `sql/registry.sql` and `sql/reconcile.sql`: they check, warn, and call these.

use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::transaction;
use crate::pg::value::Value;
use crate::refusal::Refusal;
use crate::tables::Tables;

sql_function!("idem_register_endpoint" => register);
sql_function!("idem_unregister_endpoint" => unregister);
sql_function!("idem_count_alive" => count_alive);
sql_function!("idem_hand_out" => hand_out);

/// The arguments are the columns of `idempotency_endpoints`, in the order of the statement.
fn register(args: &Args) -> Result<Answer, Refusal> {
    let registration = [
        args.unchanged(0),
        args.unchanged(1),
        Value::optional(args.bool(2), Value::bool),
        Value::optional(args.interval(3), Value::interval),
        Value::optional(args.interval(4), Value::interval),
        Value::optional(args.interval(5), Value::interval),
        Value::optional(args.int(6), Value::int),
        Value::optional(args.bigint(7), Value::bigint),
        args.unchanged(8),
        args.unchanged(9),
    ];
    let before = Tables::open(args.schema())?.register(&registration);
    Ok(Answer::Value(Value::optional(before.as_deref(), Value::text)))
}

fn unregister(args: &Args) -> Result<Answer, Refusal> {
    let Some(endpoint) = args.text(0, "endpoint")? else { return Ok(Answer::Bool(false)) };
    Ok(Answer::Bool(Tables::open(args.schema())?.unregister(&endpoint)))
}

fn count_alive(args: &Args) -> Result<Answer, Refusal> {
    let alive = match args.text(0, "endpoint")? {
        Some(endpoint) => Tables::open(args.schema())?.count_alive(&endpoint),
        None => 0,
    };
    Ok(Answer::Value(Value::bigint(alive)))
}

fn hand_out(args: &Args) -> Result<Answer, Refusal> {
    let (Some(most), Some(lease)) = (args.int(0), args.interval(1)) else { return Ok(Answer::Value(Value::NULL)) };
    let only_endpoint = args.text(2, "only_endpoint")?;
    let claims = Tables::open(args.schema())?.hand_out(most, lease, only_endpoint.as_deref());
    if claims.is_some() {
        transaction::force_durable_commit();
    }
    Ok(Answer::Value(Value::optional(claims.as_deref(), Value::payload)))
}
