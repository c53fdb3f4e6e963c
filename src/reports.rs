//! What reports read of the tables, with their owner's rights, and of the counters.

use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::rows::Rows;
use crate::pg::value::Value;
use crate::refusal::Refusal;
use crate::tables::Tables;
use crate::{settings, stats};
use std::collections::{BTreeMap, BTreeSet};

sql_function!("_idem_registry" => registry);
sql_function!("_idem_unregistered_in_use" => unregistered_in_use);
sql_function!("_idem_visits" => visits);

/// The columns of `idempotency_endpoints`, in their order.
fn registry(args: &Args) -> Result<Answer, Refusal> {
    let rows = Rows::begin(args)?;
    for row in Tables::open(args.schema())?.registry() {
        rows.put(row);
    }
    Ok(Answer::Rows)
}

/// Endpoint, and where it was seen.
fn unregistered_in_use(args: &Args) -> Result<Answer, Refusal> {
    let rows = Rows::begin(args)?;
    let tables = Tables::open(args.schema())?;
    let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for (endpoint, is_open) in tables.unregistered() {
        found.entry(endpoint).or_default().insert(if is_open { "open claims" } else { "finished claims" });
    }
    if stats::is_available() {
        let registered = tables.registered_names();
        for counted in stats::of_this_database() {
            let name = counted.endpoint;
            if !name.is_empty() && name != stats::OTHER_ENDPOINTS && !registered.contains(&name) {
                found.entry(name).or_default().insert("counters");
            }
        }
    }
    drop(tables);
    for (endpoint, seen) in found {
        let seen: Vec<&str> = seen.into_iter().collect();
        rows.put([Value::text(&endpoint), Value::text(&seen.join(", "))]);
    }
    Ok(Answer::Rows)
}

/// Whether the setting `databases` has the database of this name.
fn visits(args: &Args) -> Result<Answer, Refusal> {
    Ok(Answer::Bool(args.text(0, "database")?.is_some_and(|name| settings::is_swept(&name))))
}
