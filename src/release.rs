//! `idem_release`: the effect of an open claim is known not to have happened.

use crate::guard::{self, Claim};
use crate::ownership::{self, MOST_REPETITIONS};
use crate::pg::entry::{sql_function, Answer, Args};
use crate::refusal::Refusal;
use crate::scope::Scope;
use crate::stats::{self, Counter};
use crate::status::Status;
use crate::tables::Tables;
use crate::{audit, subject};

sql_function!("idem_release" => release);

/// Position of the argument in `sql/functions.sql`; tenant, endpoint and key come before it.
const ATTEMPT: usize = 3;

fn release(args: &Args) -> Result<Answer, Refusal> {
    let Some(scope) = subject::read_claimed_scope(args)? else { return Ok(Answer::Bool(false)) };
    let attempt = guard::attempt_meant(&scope, args.int(ATTEMPT));
    let own = guard::own(&scope).filter(|claim| claim.is_open && claim.attempt == attempt);
    if own.is_some_and(|claim| claim.guarded) {
        return Err(Refusal::effect_without_result(&scope, "idem_release"));
    }
    let tables = Tables::open_for_writing(args.schema(), &scope)?;
    for _ in 0..MOST_REPETITIONS {
        if give_up(&tables, &scope, attempt, own)? {
            stats::count(&scope.endpoint, Counter::Released, || tables.is_registered(&scope.endpoint));
            drop(tables);
            if audit::is_operator(args.schema()) {
                audit::log(&format!("released the claim {scope} at attempt {attempt}"));
            }
            return Ok(Answer::Bool(true));
        }
        match tables.state(&scope) {
            None => return ownership::check_is_latest(&tables, &scope, None).map(|()| Answer::Bool(false)),
            Some(found) if found.status == Status::Released && found.attempt == attempt => {
                return ownership::check_is_latest(&tables, &scope, Some(found)).map(|()| Answer::Bool(false))
            }
            Some(found) => ownership::check(&tables, &scope, found, attempt, "idem_release")?,
        }
    }
    Err(Refusal::change_swallowed(&scope))
}

/// A claim that was committed leaves a tombstone with its number. One that never was is deleted, or turned back into the
/// tombstone that it took over: nobody else has seen its number.
fn give_up(tables: &Tables, scope: &Scope, attempt: i32, own: Option<Claim>) -> Result<bool, Refusal> {
    let done = match own {
        None => return Ok(tables.release(scope, attempt, attempt)),
        Some(Claim { over_tombstone: true, .. }) => tables.release(scope, attempt, attempt - 1),
        Some(_) => tables.delete_claim(scope, attempt),
    };
    if done {
        guard::dropped(scope)?;
    }
    Ok(done)
}
