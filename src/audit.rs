//! Who did what: a line in the server's log for everything that an operator changes.

use crate::pg::{rights, tell};
use pgrx::pg_sys;

/// Logs what the session's user did. No line has a body; names are quoted, control characters escaped.
pub fn log(what: &str) {
    tell::log(&format!("idempotency_enforcer: role {:?} {what}", rights::session_role()));
}

/// Whether the caller may do what operators may: his calls of the applications' functions are logged, too.
pub fn is_operator(schema: pg_sys::Oid) -> bool {
    rights::may_execute(schema, c"idem_forget", &[pg_sys::TEXTOID, pg_sys::TEXTOID, pg_sys::TEXTOID])
}
