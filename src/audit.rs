//! What an administrator's call leaves in the server's log: who, and what; neither the statement nor a body.

use crate::pg::entry::{sql_function, Answer, Args};
use crate::pg::{session, tell};
use crate::refusal::Refusal;

sql_function!("_idem_log" => log_from_sql);

/// Logs that the session's user did something: `what` follows the user's name, and prints names quoted.
///
/// The session's user and not the current one, whom SECURITY DEFINER or SET ROLE may have put in its place.
pub fn log(what: &str) {
    tell::log(&line(&session::user_name(), what));
}

fn line(user: &str, what: &str) -> String {
    format!("idempotency_enforcer: role {} {what}", serde_json::Value::from(user))
}

fn log_from_sql(args: &Args) -> Result<Answer, Refusal> {
    log(&args.text(0, "message")?.unwrap_or_default());
    Ok(Answer::Void)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_begin_a_line_of_its_own() {
        assert_eq!(line("a\n\"b", "did it"), r#"idempotency_enforcer: role "a\n\"b" did it"#);
    }
}
