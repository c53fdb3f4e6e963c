//! `idem_forget` and `idem_erase`: what operators may take away from stored results.

use crate::limits::{KEY_BYTES, NAME_BYTES};
use crate::ownership::{self, MOST_REPETITIONS};
use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::value::Value;
use crate::refusal::Refusal;
use crate::status::Status;
use crate::tables::{Table, Tables};
use crate::{audit, guard, scope, subject};

sql_function!("idem_forget" => forget);
sql_function!("idem_erase" => erase);

/// Positions of the arguments of `idem_erase` in `sql/functions.sql`.
mod arg {
    pub const TENANT_ID: usize = 0;
    pub const ENDPOINT: usize = 1;
    pub const KEY: usize = 2;
}

/// A finished key becomes a tombstone, and the next arrival executes. `55006` for an open claim.
fn forget(args: &Args) -> Result<Answer, Refusal> {
    let Some(scope) = subject::read_claimed_scope(args)? else { return Ok(Answer::Bool(false)) };
    if guard::own(&scope).is_some_and(|claim| claim.guarded) {
        return Err(Refusal::effect_without_result(&scope, "idem_forget"));
    }
    let tables = Tables::open_for_writing(args.schema(), &scope)?;
    for _ in 0..MOST_REPETITIONS {
        if tables.forget(&scope) {
            drop(tables);
            audit::log(&format!("forgot the result {scope}"));
            return Ok(Answer::Bool(true));
        }
        let found = tables.state(&scope);
        ownership::check_is_latest(&tables, &scope, found)?;
        match found.map(|state| state.status) {
            None | Some(Status::Released) => return Ok(Answer::Bool(false)),
            Some(Status::InProgress) => return Err(Refusal::claim_is_open(&scope)),
            Some(Status::Succeeded | Status::Failed) => {}
        }
    }
    Err(Refusal::change_swallowed(&scope))
}

/// Blanks what a tenant was answered, and keeps what protects it: keys, fingerprints, statuses and codes.
fn erase(args: &Args) -> Result<Answer, Refusal> {
    let tenant = args.text(arg::TENANT_ID, NAME_BYTES).map_err(|bad| bad.of("tenant_id"))?;
    let tenant = scope::check_tenant(tenant)?;
    crate::tenancy::check(&tenant)?;
    let endpoint = args.text(arg::ENDPOINT, NAME_BYTES).map_err(|bad| bad.of("endpoint"))?;
    let key = args.text(arg::KEY, KEY_BYTES).map_err(|bad| bad.of("key"))?;
    if key.is_some() && endpoint.is_none() {
        return Err(Refusal::invalid(
            "endpoint must not be null where a key is given",
            "The same key on two endpoints means two operations.",
            "Pass both for one key, the endpoint for all of its keys, or neither for the whole tenant.",
        ));
    }
    let tables = Tables::open(args.schema())?;
    tables.lock_for_writing(Table::Keys)?;
    let erased = tables.erase(&tenant, endpoint.as_deref(), key.as_deref());
    drop(tables);
    let of = match (&endpoint, &key) {
        (Some(endpoint), Some(key)) => format!(" for key {key:?} on endpoint {endpoint:?}"),
        (Some(endpoint), None) => format!(" on endpoint {endpoint:?}"),
        _ => String::new(),
    };
    audit::log(&format!("erased what {erased} rows of tenant {tenant:?} were answered{of}"));
    Ok(Answer::Value(Value::bigint(erased)))
}
