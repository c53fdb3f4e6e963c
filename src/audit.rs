//! Who did what: a line in the server's log for everything that an operator changes; neither the statement nor a body.

use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::{rights, tell};
use crate::refusal::Refusal;
use pgrx::pg_sys;

sql_function!("_idem_log" => log_from_sql);

/// No line that the extension's own functions write is longer.
const LINE_BYTES: usize = 4096;

/// Logs that the session's user did something: `what` follows the user's name, and prints names quoted.
///
/// The session's user and not the current one, whom SECURITY DEFINER or SET ROLE may have put in its place.
pub fn log(what: &str) {
    tell::log(&line(&rights::session_role(), what));
}

fn line(user: &str, what: &str) -> String {
    format!("idempotency_enforcer: role {} {what}", serde_json::Value::from(user))
}

fn log_from_sql(args: &Args) -> Result<Answer, Refusal> {
    let what = args.text(0, LINE_BYTES).map_err(|bad| bad.of("message"))?;
    log(&what.unwrap_or_default());
    Ok(Answer::Void)
}

/// Whether the caller may do what operators may: his calls of the applications' functions are logged, too.
pub fn is_operator(schema: pg_sys::Oid) -> bool {
    rights::may_execute(schema, c"idem_forget", &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::TEXTOID])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_begin_a_line_of_its_own() {
        assert_eq!(line("a\n\"b", "did it"), r#"idempotency_enforcer: role "a\n\"b" did it"#);
    }
}
