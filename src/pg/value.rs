//! Values on their way into a statement or out of a function.

use crate::pg::encoding;
use pgrx::datum::{Interval, JsonB, TimestampWithTimeZone};
use pgrx::{pg_sys, IntoDatum};

/// An SQL value of a type that its place decides; allocated in the current memory context.
#[derive(Clone, Copy)]
pub struct Value(Option<pg_sys::Datum>);

impl Value {
    pub const NULL: Value = Value(None);

    pub fn datum(self) -> Option<pg_sys::Datum> {
        self.0
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

    pub fn jsonb(json: serde_json::Value) -> Self {
        Value(JsonB(json).into_datum())
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

    pub fn bool(b: bool) -> Self {
        Value(b.into_datum())
    }

    /// NULL for `None`.
    pub fn optional<T>(value: Option<T>, make: impl FnOnce(T) -> Value) -> Self {
        value.map_or(Value::NULL, make)
    }
}
