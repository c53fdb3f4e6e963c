//! Text between the database's encoding and UTF-8.
//!
//! Bodies, hashes and everything derived from a scope are UTF-8, whatever the database's encoding: a key store
//! that is restored into a database of another encoding still derives the same provider keys.

use pgrx::pg_sys;
use std::borrow::Cow;
use std::ffi::{c_char, c_int};

const UTF8: c_int = pg_sys::pg_enc::PG_UTF8 as c_int;
const SQL_ASCII: c_int = pg_sys::pg_enc::PG_SQL_ASCII as c_int;

fn database_encoding() -> c_int {
    // SAFETY: reads a per-process setting that is fixed when the backend connects.
    unsafe { pg_sys::GetDatabaseEncoding() }
}

/// The bytes of a text value as UTF-8. In an SQL_ASCII database, which has no encoding, they are taken as they are.
///
/// Raises `22P05` where a character has no UTF-8 equivalent (no server encoding of PostgreSQL has such).
pub fn to_utf8_bytes(server: &[u8]) -> Cow<'_, [u8]> {
    let encoding = database_encoding();
    if encoding == UTF8 || encoding == SQL_ASCII || server.is_ascii() {
        return Cow::Borrowed(server);
    }
    // SAFETY: PostgreSQL reads `len` bytes from `s` and returns either `s` itself or a palloc'd, NUL-terminated
    // copy; a text value holds no NUL, so the copy's length is that of the C string.
    unsafe {
        let s = server.as_ptr().cast::<c_char>();
        let converted = pg_sys::pg_server_to_any(s, server.len() as c_int, UTF8);
        if std::ptr::eq(converted, s) {
            Cow::Borrowed(server)
        } else {
            Cow::Owned(std::ffi::CStr::from_ptr(converted).to_bytes().to_vec())
        }
    }
}

/// A text value as a string; `None` when it is no valid UTF-8, which only an SQL_ASCII database can hold.
pub fn to_utf8(server: &[u8]) -> Option<String> {
    String::from_utf8(to_utf8_bytes(server).into_owned()).ok()
}

/// The same string in the database's encoding.
///
/// Raises `22P05` for a character that the encoding does not have.
pub fn to_server_bytes(utf8: &str) -> Cow<'_, [u8]> {
    let encoding = database_encoding();
    if encoding == UTF8 || encoding == SQL_ASCII || utf8.is_ascii() {
        return Cow::Borrowed(utf8.as_bytes());
    }
    // SAFETY: as in `to_utf8_bytes`.
    unsafe {
        let s = utf8.as_ptr().cast::<c_char>();
        let converted = pg_sys::pg_any_to_server(s, utf8.len() as c_int, UTF8);
        if std::ptr::eq(converted, s) {
            Cow::Borrowed(utf8.as_bytes())
        } else {
            Cow::Owned(std::ffi::CStr::from_ptr(converted).to_bytes().to_vec())
        }
    }
}

/// A NUL-terminated copy in the database's encoding, in the current memory context.
pub fn c_string(utf8: &str) -> *const c_char {
    let bytes = to_server_bytes(utf8);
    // SAFETY: `pnstrdup` copies at most `len` bytes and adds the NUL.
    unsafe { pg_sys::pnstrdup(bytes.as_ptr().cast::<c_char>(), bytes.len() as _) }
}
