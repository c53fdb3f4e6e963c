//! Messages that are no errors: to the session (NOTICE, WARNING) and to the server's log.

use crate::pg::encoding;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{pg_sys, PgLogLevel, PgSqlErrorCode};
use std::ffi::{c_char, c_int};

extern "C-unwind" {
    fn errstart(elevel: c_int, domain: *const c_char) -> bool;
    fn errmsg_internal(fmt: *const c_char, ...) -> c_int;
    fn errhidestmt(hide_stmt: bool) -> c_int;
    fn errhidecontext(hide_ctx: bool) -> c_int;
    fn errfinish(filename: *const c_char, lineno: c_int, funcname: *const c_char);
}

/// A NOTICE.
pub fn notice(message: String) {
    ErrorReport::new(PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION, message, "idempotency_enforcer")
        .report(PgLogLevel::NOTICE);
}

/// A WARNING with DETAIL and HINT.
pub fn warning(message: String, detail: String, hint: String) {
    ErrorReport::new(PgSqlErrorCode::ERRCODE_WARNING, message, "idempotency_enforcer")
        .set_detail(detail)
        .set_hint(hint)
        .report(PgLogLevel::WARNING);
}

/// A line in the server's log, with neither the statement that led to it, which may hold a body, nor a context.
pub fn log(message: &str) {
    let message = encoding::c_string(message);
    // SAFETY: the three-step protocol of elog.c at level LOG, which returns; the message is an argument of "%s". The boundary
    // turns an interrupt that `errfinish` serves into a panic, so that destructors run.
    unsafe {
        pg_sys::ffi::pg_guard_ffi_boundary(|| {
            if errstart(PgLogLevel::LOG as c_int, std::ptr::null()) {
                errmsg_internal(c"%s".as_ptr(), message);
                errhidestmt(true);
                errhidecontext(true);
                errfinish(c"idempotency_enforcer".as_ptr(), 0, c"log".as_ptr());
            }
        });
    }
}
