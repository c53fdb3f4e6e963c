//! Keeping the extension where it is for the length of a call.
//!
//! Functions that call each other by OID would fail with an internal error (`XX000`) where DROP EXTENSION, or DROP SCHEMA
//! ... CASCADE of the schema's owner, takes one of them away between two steps.

use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::extension::{self, Hold};
use crate::pg::rights;
use crate::refusal::{self, Refusal};

sql_function!("_idem_hold" => hold);

/// Argument 0: for a change of the extension's rights, of which there is one at a time.
fn hold(args: &Args) -> Result<Answer, Refusal> {
    // Code that somebody has put into an index runs there, in another session, under another's name.
    if args.bool(0) == Some(true) && rights::is_restricted() {
        return Err(Refusal {
            sqlstate: refusal::INSUFFICIENT_PRIVILEGE,
            message: "rights cannot be changed within a security-restricted operation".into(),
            detail: "It runs code with its owner's rights in the session of somebody else, as ANALYZE does.".into(),
            hint: "Call it from a session of your own.".into(),
        });
    }
    let how = if args.bool(0) == Some(true) { Hold::ForChange } else { Hold::ForReading };
    match extension::hold(args.function(), how) {
        true => Ok(Answer::Void),
        false => Err(Refusal {
            sqlstate: refusal::NOT_IN_PREREQUISITE_STATE,
            message: "extension idempotency_enforcer was dropped while this call waited for it".into(),
            detail: "This function belonged to it; what has its name now is another.".into(),
            hint: "Nothing was done. Call again if the extension has been created anew.".into(),
        }),
    }
}
