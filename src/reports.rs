//! What `idem_health`, `idem_metrics` and the design document read of the tables: always with the tables' owner's
//! rights.
//!
//! Declared in `sql/reports.sql`. Each takes `lenient`: true for a report that must not fail, whatever somebody did to
//! the tables; it then returns nothing where another session's lock, a refusal or an error is in the way.

use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::rows::Rows;
use crate::pg::subtransaction;
use crate::pg::value::Value;
use crate::refusal::Refusal;
use crate::tables::{self, Tables};
use pgrx::pg_sys;

sql_function!("_idem_open_claims" => open_claims);
sql_function!("_idem_sweep_lag" => sweep_lag);
sql_function!("_idem_registry" => registry);
sql_function!("_idem_unregistered_in_use" => unregistered_in_use);
sql_function!("_idem_tables_problem" => tables_problem);

fn open_claims(args: &Args) -> Result<Answer, Refusal> {
    rows_of(args, |tables, rows| {
        for of in tables.open_claims() {
            rows.put([
                Value::optional(of.endpoint.as_deref(), Value::text),
                Value::bool(of.registered),
                Value::bigint(of.open),
                Value::bigint(of.stuck),
                Value::bigint(of.leased),
                Value::optional(of.oldest, Value::timestamptz),
            ]);
        }
    })
}

fn registry(args: &Args) -> Result<Answer, Refusal> {
    rows_of(args, |tables, rows| tables.registry(|endpoint| rows.put(endpoint)))
}

fn unregistered_in_use(args: &Args) -> Result<Answer, Refusal> {
    rows_of(args, |tables, rows| {
        for found in tables.unregistered_in_use() {
            rows.put([
                Value::text(&found.endpoint),
                Value::bool(found.has_open_claims),
                Value::bool(found.has_finished_claims),
            ]);
        }
    })
}

fn sweep_lag(args: &Args) -> Result<Answer, Refusal> {
    let lag = read(args, Tables::sweep_lag)?.flatten();
    Ok(Answer::Value(Value::optional(lag, Value::interval)))
}

/// Why the tables cannot be read, in one line; NULL when they can, or when nothing but a lock is in the way.
fn tables_problem(args: &Args) -> Result<Answer, Refusal> {
    let problem = try_to_read(args.schema(), Tables::plan_to_read).err().flatten();
    Ok(Answer::Value(Value::optional(problem.as_deref(), Value::text)))
}

fn rows_of(args: &Args, report: impl Fn(&Tables, &Rows)) -> Result<Answer, Refusal> {
    let rows = Rows::begin(args)?;
    read(args, |tables| report(tables, &rows))?;
    Ok(Answer::Rows)
}

/// Reads the tables; `None` where they cannot be and the call is lenient.
fn read<R>(args: &Args, report: impl FnOnce(&Tables) -> R) -> Result<Option<R>, Refusal> {
    let schema = args.schema();
    if args.bool(0) == Some(true) {
        return Ok(try_to_read(schema, report).ok());
    }
    tables::lock_to_read(schema)?;
    Ok(Some(report(&Tables::open(schema)?)))
}

/// Reads the tables at once and in a subtransaction, or says what is in the way: nothing, if it is a lock.
fn try_to_read<R>(schema: pg_sys::Oid, report: impl FnOnce(&Tables) -> R) -> Result<R, Option<String>> {
    let attempt = subtransaction::attempt(|| {
        if !tables::try_lock_to_read(schema)? {
            return Ok(None);
        }
        Ok(Some(report(&Tables::open(schema)?)))
    });
    match attempt {
        Ok(Ok(Some(found))) => Ok(found),
        Ok(Ok(None)) => Err(None),
        Ok(Err(Refusal { message, .. })) | Err(message) => Err(Some(message)),
    }
}
