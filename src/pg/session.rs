//! The session that a call belongs to.

use crate::pg::encoding;
use pgrx::pg_sys;
use std::ffi::CStr;

/// The name of the role that logged in, or that SET SESSION AUTHORIZATION names; `?` when it was dropped since.
pub fn user_name() -> String {
    // SAFETY: the name, if the role exists, is a palloc'd C string.
    unsafe {
        let name = pg_sys::GetUserNameFromId(pg_sys::GetSessionUserId(), true);
        if name.is_null() {
            return "?".into();
        }
        String::from_utf8_lossy(&encoding::to_utf8_bytes(CStr::from_ptr(name).to_bytes())).into_owned()
    }
}
