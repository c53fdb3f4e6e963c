//! `idem_checkpoint`: how far an external operation has come, stored with the local step that it belongs to.

use crate::limits::{JSONB_GROWTH, RECOVERY_POINT_BYTES, RECOVERY_STATE_BYTES};
use crate::ownership::{self, MOST_REPETITIONS};
use crate::pg::entry::{sql_function, Answer, Args, BadText};
use crate::pg::transaction;
use crate::refusal::Refusal;
use crate::tables::Tables;
use crate::{guard, subject};

sql_function!("idem_checkpoint" => checkpoint);

/// Positions of the arguments in `sql/functions.sql`; tenant, endpoint and key come before them.
mod arg {
    pub const RECOVERY_POINT: usize = 3;
    pub const RECOVERY_STATE: usize = 4;
    pub const ATTEMPT: usize = 5;
}

fn checkpoint(args: &Args) -> Result<Answer, Refusal> {
    let scope = subject::read_scope_of_claim(args)?;
    check_arguments(args).map_err(|refusal| refusal.naming(&scope.endpoint, Some(&scope.key)))?;
    let (point, state) = (args.unchanged(arg::RECOVERY_POINT), args.unchanged(arg::RECOVERY_STATE));
    let attempt = guard::attempt_meant(&scope, args.int(arg::ATTEMPT));
    let tables = Tables::open_for_writing(args.schema(), &scope)?;
    for _ in 0..MOST_REPETITIONS {
        if tables.checkpoint(&scope, attempt, point, state) {
            transaction::force_durable_commit();
            return Ok(Answer::Bool(true));
        }
        match tables.state(&scope) {
            None => return Err(ownership::missing(&tables, &scope)),
            Some(found) => ownership::check(&tables, &scope, found, attempt, "idem_checkpoint")?,
        }
    }
    Err(Refusal::change_swallowed(&scope))
}

fn check_arguments(args: &Args) -> Result<(), Refusal> {
    match args.size(arg::RECOVERY_POINT).unwrap_or(0) {
        0 => Err(Refusal::invalid(
            "recovery_point must not be null or empty",
            "A reconciler decides by it where to go on.",
            "Pass the name of the step that this transaction finishes, for example 'charge_requested'.",
        )),
        1..=RECOVERY_POINT_BYTES => check_state(args),
        size => Err(Refusal::too_long("recovery_point", size, RECOVERY_POINT_BYTES)),
    }
}

/// The state's text is what is limited; what cannot be that short is not made into text.
fn check_state(args: &Args) -> Result<(), Refusal> {
    let stored = args.size(arg::RECOVERY_STATE).unwrap_or(0);
    let size = match stored {
        0 => 0,
        1..=RECOVERY_STATE_BYTES_AS_JSONB => match args.jsonb_text(arg::RECOVERY_STATE, RECOVERY_STATE_BYTES) {
            Ok(text) => text.map_or(0, |text| text.len()),
            Err(BadText::TooLong { size, .. }) => size,
            Err(BadText::NotUtf8) => stored, // it is stored as it is
        },
        _ => stored,
    };
    if size > RECOVERY_STATE_BYTES {
        return Err(Refusal::too_long("recovery_state", size, RECOVERY_STATE_BYTES));
    }
    Ok(())
}

const RECOVERY_STATE_BYTES_AS_JSONB: usize = RECOVERY_STATE_BYTES * JSONB_GROWTH;
