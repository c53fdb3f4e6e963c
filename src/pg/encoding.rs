//! Text between the database's encoding and UTF-8.
//!
//! Bodies, hashes and everything derived from a scope are UTF-8, whatever the database's encoding: a key store
//! that is restored into a database of another encoding still derives the same provider keys.

use pgrx::pg_sys;
use std::borrow::Cow;
use std::ffi::{c_char, c_int, CStr};

const UTF8: c_int = pg_sys::pg_enc::PG_UTF8 as c_int;
const SQL_ASCII: c_int = pg_sys::pg_enc::PG_SQL_ASCII as c_int;

fn database_encoding() -> c_int {
    // SAFETY: reads a per-process setting that is fixed when the backend connects.
    unsafe { pg_sys::GetDatabaseEncoding() }
}

/// Whether text needs no conversion: its bytes are taken for UTF-8 as they are.
pub fn is_utf8_in_place(server: &[u8]) -> bool {
    let encoding = database_encoding();
    encoding == UTF8 || encoding == SQL_ASCII || server.is_ascii()
}

/// The bytes of a text value as UTF-8. In an SQL_ASCII database, which has no encoding, they are taken as they are.
///
/// `None` where a character has no UTF-8 equivalent: WIN1252 has such bytes, and from MULE_INTERNAL PostgreSQL converts
/// nothing but ASCII. An error of PostgreSQL's own would show them, and they may be part of a body.
pub fn to_utf8_bytes(server: &[u8]) -> Option<&[u8]> {
    if is_utf8_in_place(server) {
        return Some(server);
    }
    let encoding = database_encoding();
    // The length of the result, one character being at most four times as long (MAX_CONVERSION_GROWTH), is an int.
    let size = server.len().checked_add(2)?.checked_mul(4).filter(|n| *n <= c_int::MAX as usize)?;
    // SAFETY: PostgreSQL reads `len` bytes from the source and writes at most `size` into the buffer, with a NUL behind what
    // it has converted; text holds no NUL. The buffer lives as long as the call, as the argument does: both are in
    // the memory of the call or of a longer life, so it may be handed out for the time of the borrow.
    unsafe {
        let converter = pg_sys::FindDefaultConversionProc(encoding, UTF8);
        if converter == pg_sys::InvalidOid {
            return None;
        }
        let buffer = pg_sys::MemoryContextAllocHuge(pg_sys::CurrentMemoryContext, size).cast::<u8>();
        let read = pg_sys::pg_do_encoding_conversion_buf(
            converter,
            encoding,
            UTF8,
            server.as_ptr().cast_mut(),
            server.len() as c_int,
            buffer,
            size as c_int,
            true,
        );
        (read as usize == server.len()).then(|| CStr::from_ptr(buffer.cast::<c_char>()).to_bytes())
    }
}

/// A text value as a string; `None` when it is no valid UTF-8.
pub fn to_utf8(server: &[u8]) -> Option<String> {
    to_utf8_bytes(server).and_then(|utf8| std::str::from_utf8(utf8).ok()).map(str::to_owned)
}

/// A name of a database object as messages show it; what has no equivalent in UTF-8 is shown escaped.
pub fn shown(name: &CStr) -> String {
    to_utf8(name.to_bytes()).unwrap_or_else(|| name.to_bytes().escape_ascii().to_string())
}

/// The same string in the database's encoding.
///
/// Raises `22P05` for a character that the encoding does not have.
pub fn to_server_bytes(utf8: &str) -> Cow<'_, [u8]> {
    if is_utf8_in_place(utf8.as_bytes()) {
        return Cow::Borrowed(utf8.as_bytes());
    }
    // SAFETY: PostgreSQL reads `len` bytes from `s` and returns either `s` itself or a palloc'd, NUL-terminated copy; a
    // text value holds no NUL, so the copy's length is that of the C string.
    unsafe {
        let s = utf8.as_ptr().cast::<c_char>();
        let converted = pg_sys::pg_any_to_server(s, utf8.len() as c_int, UTF8);
        if std::ptr::eq(converted, s) {
            Cow::Borrowed(utf8.as_bytes())
        } else {
            Cow::Owned(CStr::from_ptr(converted).to_bytes().to_vec())
        }
    }
}

/// A NUL-terminated copy in the database's encoding, in the current memory context.
pub fn c_string(utf8: &str) -> *const c_char {
    let bytes = to_server_bytes(utf8);
    // SAFETY: `pnstrdup` copies at most `len` bytes and adds the NUL.
    unsafe { pg_sys::pnstrdup(bytes.as_ptr().cast::<c_char>(), bytes.len() as _) }
}
