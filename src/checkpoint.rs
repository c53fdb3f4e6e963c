//! `idem_checkpoint`: how far an external operation has come, stored with the local step that it belongs to.

use crate::finish::{check_is_owned, missing, read_claimed_scope, FIRST_ATTEMPT};
use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::spi::Mode;
use crate::pg::transaction;
use crate::refusal::Refusal;
use crate::tables::Tables;

sql_function!("idem_checkpoint" => checkpoint);

/// Positions of the arguments in `sql/functions.sql`; tenant, endpoint and key come before them.
mod arg {
    pub const RECOVERY_POINT: usize = 3;
    pub const RECOVERY_STATE: usize = 4;
    pub const ATTEMPT: usize = 5;
}

fn checkpoint(args: &Args) -> Result<Answer, Refusal> {
    let scope = read_claimed_scope(args)?;
    if args.bytes(arg::RECOVERY_POINT).is_none_or(<[u8]>::is_empty) {
        return Err(Refusal::invalid(
            "recovery_point must not be null or empty",
            "A reconciler decides by it where to go on.",
            "Pass the name of the step that this transaction finishes, for example 'charge_requested'.",
        )
        .naming(&scope.endpoint, Some(&scope.key)));
    }
    let point = args.unchanged(arg::RECOVERY_POINT);
    let state = args.unchanged(arg::RECOVERY_STATE);
    let attempt = args.int(arg::ATTEMPT).unwrap_or(FIRST_ATTEMPT);
    let tables = Tables::open(args.schema())?;
    loop {
        if tables.checkpoint(&scope, attempt, point, state) {
            transaction::force_durable_commit();
            return Ok(Answer::Void);
        }
        match tables.state(&scope, Mode::Read) {
            None => return Err(missing(&tables, &scope)),
            Some(found) => check_is_owned(&tables, &scope, &found, attempt, "idem_checkpoint")?,
        }
    }
}
