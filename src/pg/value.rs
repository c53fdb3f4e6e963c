//! Values on their way into a statement or out of a function.

use crate::pg::encoding;
use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::{pg_sys, IntoDatum};
use std::ffi::CStr;

/// An SQL value of a type that its place decides; allocated in the current memory context.
#[derive(Clone, Copy)]
pub struct Value(Option<pg_sys::Datum>);

impl Value {
    pub const NULL: Value = Value(None);

    pub fn datum(self) -> Option<pg_sys::Datum> {
        self.0
    }

    /// A value as PostgreSQL gave it, of the type that its place asks for.
    pub fn raw(datum: pg_sys::Datum) -> Self {
        Value(Some(datum))
    }

    /// `text`, converted to the database's encoding.
    pub fn text(s: &str) -> Self {
        Value(encoding::to_server_bytes(s).into_owned().into_datum())
    }

    /// The content of any variable-length type as it was read ([`crate::pg::spi::Row::payload`]):
    /// `bytea`, `text` in the database's encoding, or `jsonb` in its binary form.
    pub fn payload(bytes: &[u8]) -> Self {
        Value(bytes.into_datum())
    }

    /// `jsonb` from a document.
    pub fn jsonb(json: &serde_json::Value) -> Self {
        let text = encoding::c_string(&json.to_string());
        // SAFETY: jsonb_in takes one C string and returns a jsonb.
        Value(unsafe { pgrx::direct_function_call_as_datum(pg_sys::jsonb_in, &[Some(pg_sys::Datum::from(text))]) })
    }

    /// `text[]`.
    pub fn texts(texts: &[&str]) -> Self {
        Value(texts.to_vec().into_datum())
    }

    pub fn uuid(bytes: [u8; 16]) -> Self {
        Value(pgrx::Uuid::from_bytes(bytes).into_datum())
    }

    pub fn interval(interval: Interval) -> Self {
        Value(interval.into_datum())
    }

    pub fn timestamptz(at: TimestampWithTimeZone) -> Self {
        Value(at.into_datum())
    }

    pub fn int(n: i32) -> Self {
        Value(n.into_datum())
    }

    pub fn bigint(n: i64) -> Self {
        Value(n.into_datum())
    }

    pub fn bigints(all: impl Iterator<Item = i64>) -> Self {
        Value(all.collect::<Vec<i64>>().into_datum())
    }

    pub fn bool(b: bool) -> Self {
        Value(b.into_datum())
    }

    /// NULL for `None`.
    pub fn optional<T>(value: Option<T>, make: impl FnOnce(T) -> Value) -> Self {
        value.map_or(Value::NULL, make)
    }
}

/// An interval as the session prints it.
pub fn interval_text(interval: Interval) -> String {
    // SAFETY: interval_out takes an interval and returns a palloc'd C string.
    unsafe {
        let text = pgrx::direct_function_call_as_datum(pg_sys::interval_out, &[interval.into_datum()]);
        text.map_or(String::new(), |text| CStr::from_ptr(text.cast_mut_ptr()).to_string_lossy().into_owned())
    }
}

/// Twice the interval, in the units in which it was given.
pub fn interval_times_two(interval: Interval) -> Interval {
    // SAFETY: interval_pl takes two intervals and returns one, or raises 22008 for one that is too large.
    let sum: Option<Interval> =
        unsafe { pgrx::direct_function_call(pg_sys::interval_pl, &[interval.into_datum(), interval.into_datum()]) };
    sum.unwrap_or(interval)
}

/// The text of a jsonb value in the database's encoding, in the current memory context. pgrx's `JsonB` takes every database for
/// a UTF-8 one, and panics on a number or a depth that serde_json does not read.
///
/// # Safety
///
/// The datum must be a jsonb.
pub unsafe fn jsonb_text<'a>(datum: pg_sys::Datum) -> &'a [u8] {
    // SAFETY: jsonb_out takes a jsonb and returns a palloc'd C string.
    unsafe {
        let text = pgrx::direct_function_call_as_datum(pg_sys::jsonb_out, &[Some(datum)]);
        text.map_or(&[], |text| CStr::from_ptr(text.cast_mut_ptr()).to_bytes())
    }
}
