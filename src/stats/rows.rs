//! The counters as SQL sees them; declared in `sql/stats.sql` and `sql/metrics.sql`.

use super::{Counted, OTHER_ENDPOINTS};
use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::rows::Rows;
use crate::pg::value::Value;
use crate::refusal::Refusal;
use crate::{settings, stats};

sql_function!("idem_counters" => counters);
sql_function!("idem_stats_reset" => reset);
sql_function!("idem_is_preloaded" => is_preloaded);
sql_function!("_idem_visits" => visits);

/// The counters of a row are in the order of [`stats::Counter`].
fn counters(args: &Args) -> Result<Answer, Refusal> {
    let all = stats::of_this_database().ok_or_else(Refusal::not_preloaded)?;
    let rows = Rows::begin(args)?;
    for counted in all {
        let (kind, endpoint, counters) = match &counted {
            Counted::Database(counters) => ("database", Value::NULL, counters),
            Counted::Endpoint(name, counters) => ("endpoint", Value::payload(name), counters),
            Counted::Others(counters) => ("others", Value::text(OTHER_ENDPOINTS), counters),
        };
        rows.put([Value::text(kind), endpoint, Value::bigints(counters.iter().map(|n| *n as i64))]);
    }
    Ok(Answer::Rows)
}

fn reset(_: &Args) -> Result<Answer, Refusal> {
    match stats::reset_this_database() {
        true => Ok(Answer::Void),
        false => Err(Refusal::not_preloaded()),
    }
}

fn is_preloaded(_: &Args) -> Result<Answer, Refusal> {
    Ok(Answer::Bool(stats::is_available()))
}

/// Compares bytes, as the launcher does: names of databases have no encoding.
fn visits(args: &Args) -> Result<Answer, Refusal> {
    let database = args.bytes(0).filter(|_| stats::is_available());
    let visits = database.map(|name| settings::is_swept(&String::from_utf8_lossy(name)));
    Ok(Answer::Value(Value::optional(visits, Value::bool)))
}
