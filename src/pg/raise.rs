//! Raises a [`Refusal`] as a PostgreSQL error with a SQLSTATE of our own.
//!
//! pgrx's `ereport!` knows PostgreSQL's own codes only, so the three-step protocol of `elog.c` is spoken
//! directly: `errstart`, the `err...` fields, `errfinish`. `errfinish` leaves by `longjmp`, so the frame that
//! calls it must own nothing that needs dropping: a guarded function first turns the refusal into C strings
//! in PostgreSQL's memory ([`Raised`]), returns, and only then is it raised.

use crate::pg::encoding;
use crate::refusal::Refusal;
use std::ffi::{c_char, c_int};

extern "C-unwind" {
    fn errstart(elevel: c_int, domain: *const c_char) -> bool;
    fn errcode(sqlerrcode: c_int) -> c_int;
    fn errmsg_internal(fmt: *const c_char, ...) -> c_int;
    fn errdetail_internal(fmt: *const c_char, ...) -> c_int;
    fn errhint(fmt: *const c_char, ...) -> c_int;
    fn errfinish(filename: *const c_char, lineno: c_int, funcname: *const c_char);
}

/// A refusal as plain data in the current memory context: nothing to drop.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Raised {
    sqlerrcode: c_int,
    message: *const c_char,
    detail: *const c_char,
    hint: *const c_char,
}

impl Raised {
    /// Copies the refusal into the current memory context, in the database's encoding.
    pub fn new(refusal: &Refusal) -> Self {
        Raised {
            sqlerrcode: pack_sqlstate(refusal.sqlstate),
            message: encoding::c_string(&refusal.message),
            detail: encoding::c_string(&refusal.detail),
            hint: encoding::c_string(&refusal.hint),
        }
    }
}

/// `MAKE_SQLSTATE` of `elog.h`: five characters, six bits each.
fn pack_sqlstate(code: &str) -> c_int {
    code.bytes()
        .take(5)
        .enumerate()
        .fold(0, |packed, (i, b)| packed + (((c_int::from(b) - c_int::from(b'0')) & 0x3F) << (6 * i)))
}

/// `unpack_sql_state` of `elog.c`.
pub fn unpack_sqlstate(packed: c_int) -> String {
    (0..5).map(|i| char::from(((packed >> (6 * i)) & 0x3F) as u8 + b'0')).collect()
}

/// Reports the refusal at ERROR; control does not come back.
///
/// # Safety
///
/// Leaves by `longjmp`: no frame between here and PostgreSQL may own a value with a destructor.
pub unsafe fn raise(raised: Raised) -> ! {
    // SAFETY: the strings were made by `Raised::new` in a memory context that lives until the error is
    // reported, and are passed as arguments of "%s", never as the format. `errfinish` at ERROR never returns.
    unsafe {
        if errstart(pgrx::PgLogLevel::ERROR as c_int, std::ptr::null()) {
            errcode(raised.sqlerrcode);
            errmsg_internal(c"%s".as_ptr(), raised.message);
            if *raised.detail != 0 {
                errdetail_internal(c"%s".as_ptr(), raised.detail);
            }
            if *raised.hint != 0 {
                errhint(c"%s".as_ptr(), raised.hint);
            }
            errfinish(c"idempotency_enforcer".as_ptr(), 0, c"refuse".as_ptr());
        }
    }
    // elog.c promises that this is never reached.
    std::process::abort()
}

#[cfg(test)]
mod tests {
    use super::{pack_sqlstate, unpack_sqlstate};

    #[test]
    fn packs_as_postgresql_does() {
        // ERRCODE_UNIQUE_VIOLATION (23505) and ERRCODE_INTERNAL_ERROR (XX000), as in utils/errcodes.h.
        assert_eq!(pack_sqlstate("23505"), 83906754);
        assert_eq!(pack_sqlstate("XX000"), 2600);
    }

    #[test]
    fn unpacks_what_was_packed() {
        for code in ["23505", "XX000", "ID004", "P0001"] {
            assert_eq!(unpack_sqlstate(pack_sqlstate(code)), code);
        }
    }
}
