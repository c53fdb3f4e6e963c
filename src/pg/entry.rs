//! SQL-callable functions: version-1 entry points whose body returns a value or a [`Refusal`].

use crate::pg::encoding;
use crate::pg::raise::{self, Raised};
use crate::pg::value::{self, Value};
use crate::refusal::Refusal;
use pgrx::datum::{Array, Interval, TimestampWithTimeZone};
use pgrx::{pg_sys, FromDatum};

/// The arguments of one call.
pub struct Args {
    fcinfo: pg_sys::FunctionCallInfo,
}

/// What a function answers.
pub enum Answer {
    Void,
    Bool(bool),
    Int(i32),
    /// Any other value, or NULL.
    Value(Value),
    /// A composite value, made by [`crate::pg::row::OutRow`].
    Row(pg_sys::Datum),
    /// The rows that were put into [`crate::pg::rows::Rows`].
    Rows,
}

/// What the guarded half hands to the half that may leave by `longjmp`: plain data.
#[repr(C)]
#[derive(Clone, Copy)]
enum Handover {
    Value(pg_sys::Datum),
    Null,
    Refusal(Raised),
}

/// Declares the entry point `$name` of `CREATE FUNCTION ... AS 'MODULE_PATHNAME', '$name'`.
///
/// `$body` is a `fn(&Args) -> Result<Answer, Refusal>`. The SQL declaration is in `sql/functions.sql`.
macro_rules! sql_function {
    ($name:literal => $body:path) => {
        const _: () = {
            #[export_name = concat!("pg_finfo_", $name)]
            extern "C" fn finfo() -> *const ::pgrx::pg_sys::Pg_finfo_record {
                const V1: ::pgrx::pg_sys::Pg_finfo_record = ::pgrx::pg_sys::Pg_finfo_record { api_version: 1 };
                &V1
            }

            #[export_name = $name]
            unsafe extern "C-unwind" fn entry(fcinfo: ::pgrx::pg_sys::FunctionCallInfo) -> ::pgrx::pg_sys::Datum {
                // SAFETY: called by PostgreSQL's function manager with a valid fcinfo; this frame owns nothing.
                unsafe { $crate::pg::entry::enter(fcinfo, $body) }
            }
        };
    };
}
pub(crate) use sql_function;

/// Runs `body` under pgrx's guard, then returns its value or raises its refusal.
///
/// # Safety
///
/// `fcinfo` must be what the function manager passed to a version-1 function, and no frame up to it may own a
/// value with a destructor.
pub unsafe fn enter(fcinfo: pg_sys::FunctionCallInfo, body: fn(&Args) -> Result<Answer, Refusal>) -> pg_sys::Datum {
    // SAFETY: the guard turns a panic into an ERROR once every destructor in `body` has run; `Handover` is
    // plain data, so when `raise` leaves by longjmp nothing is skipped.
    unsafe {
        let handover = pgrx::pgrx_extern_c_guard(move || match body(&Args { fcinfo }) {
            Ok(Answer::Void) => Handover::Value(pg_sys::Datum::from(0)),
            Ok(Answer::Bool(b)) => Handover::Value(pg_sys::Datum::from(b)),
            Ok(Answer::Int(n)) => Handover::Value(pg_sys::Datum::from(n)),
            Ok(Answer::Value(value)) => value.datum().map_or(Handover::Null, Handover::Value),
            Ok(Answer::Row(row)) => Handover::Value(row),
            Ok(Answer::Rows) => Handover::Null,
            Err(refusal) => Handover::Refusal(Raised::new(&refusal)),
        });
        match handover {
            Handover::Value(datum) => datum,
            Handover::Null => {
                (*fcinfo).isnull = true;
                pg_sys::Datum::from(0)
            }
            Handover::Refusal(raised) => raise::raise(raised),
        }
    }
}

impl Args {
    pub(super) fn fcinfo(&self) -> pg_sys::FunctionCallInfo {
        self.fcinfo
    }

    /// The function that was called.
    pub fn function(&self) -> pg_sys::Oid {
        // SAFETY: fcinfo and its flinfo are valid for the length of the call.
        unsafe { (*(*self.fcinfo).flinfo).fn_oid }
    }

    /// The schema of the function that was called, which is the extension's.
    pub fn schema(&self) -> pg_sys::Oid {
        // SAFETY: a catalog look-up.
        unsafe { pg_sys::get_func_namespace(self.function()) }
    }

    fn get<T: FromDatum>(&self, n: usize) -> Option<T> {
        // SAFETY: the SQL declaration gives argument `n` the type that `T` reads.
        unsafe { pgrx::pg_getarg(self.fcinfo, n) }
    }

    fn datum(&self, n: usize) -> Option<pg_sys::Datum> {
        // SAFETY: fcinfo is valid and has this argument, by the SQL declaration.
        unsafe { (!pgrx::pg_arg_is_null(self.fcinfo, n)).then(|| pgrx::pg_getarg_datum_raw(self.fcinfo, n)) }
    }

    /// The size in bytes of a variable-length argument, known before it is fetched from a TOAST table or decompressed.
    pub fn size(&self, n: usize) -> Option<usize> {
        // SAFETY: the argument is a variable-length value, by the SQL declaration; it is read in place.
        self.datum(n).map(|datum| unsafe { pg_sys::toast_raw_datum_size(datum) } - pg_sys::VARHDRSZ)
    }

    /// A text argument of at most `most` bytes in the database's encoding; a longer one is not copied.
    pub fn text(&self, n: usize, most: usize) -> Result<Option<String>, BadText> {
        match self.size(n) {
            None => Ok(None),
            Some(size) if size > most => Err(BadText::TooLong { size, most }),
            Some(_) => match encoding::to_utf8(self.bytes(n).unwrap_or_default()) {
                Some(text) => Ok(Some(text)),
                None => Err(BadText::NotUtf8),
            },
        }
    }

    /// A text argument as its UTF-8 bytes, which is how bodies are stored and hashed; `22021` where a character has no
    /// equivalent there.
    pub fn utf8_bytes(&self, n: usize, name: &str) -> Result<Option<&[u8]>, Refusal> {
        let server = self.bytes(n);
        server.map(|s| encoding::to_utf8_bytes(s).ok_or_else(|| Refusal::not_utf8(name))).transpose()
    }

    /// Whether the UTF-8 bytes of a text argument are the argument's own.
    pub fn is_utf8_in_place(&self, n: usize) -> bool {
        self.bytes(n).is_none_or(encoding::is_utf8_in_place)
    }

    pub fn bytes(&self, n: usize) -> Option<&[u8]> {
        self.get::<&[u8]>(n)
    }

    pub fn is_null(&self, n: usize) -> bool {
        self.datum(n).is_none()
    }

    pub fn int(&self, n: usize) -> Option<i32> {
        self.get(n)
    }

    pub fn bigint(&self, n: usize) -> Option<i64> {
        self.get(n)
    }

    pub fn bool(&self, n: usize) -> Option<bool> {
        self.get(n)
    }

    pub fn interval(&self, n: usize) -> Option<Interval> {
        self.get(n)
    }

    pub fn timestamptz(&self, n: usize) -> Option<TimestampWithTimeZone> {
        self.get(n)
    }

    /// The text of a jsonb argument, in UTF-8 and of at most `most` bytes; a longer one, however short its binary form, is not
    /// copied.
    pub fn jsonb_text(&self, n: usize, most: usize) -> Result<Option<Vec<u8>>, BadText> {
        let Some(datum) = self.datum(n) else { return Ok(None) };
        // SAFETY: the argument is a jsonb, by the SQL declaration.
        let text = encoding::to_utf8_bytes(unsafe { value::jsonb_text(datum) }).ok_or(BadText::NotUtf8)?;
        match text {
            text if text.len() > most => Err(BadText::TooLong { size: text.len(), most }),
            text if std::str::from_utf8(text).is_err() => Err(BadText::NotUtf8),
            text => Ok(Some(text.to_vec())),
        }
    }

    /// An argument of type text[]; elements that are NULL or no UTF-8 are `None`.
    pub fn texts(&self, n: usize) -> Option<Vec<Option<String>>> {
        self.get::<Array<&[u8]>>(n).map(|texts| texts.iter().map(|text| text.and_then(encoding::to_utf8)).collect())
    }

    /// A copy of an array, which may have come in a form that is only for reading in place.
    pub fn copied(&self, n: usize) -> Value {
        // SAFETY: the argument is of variable length; the copy is plain and whole, in the current memory context.
        Value::optional(self.datum(n), |datum| unsafe {
            Value::raw(pg_sys::Datum::from(pg_sys::pg_detoast_datum_copy(datum.cast_mut_ptr())))
        })
    }

    /// A variable-length argument as it came, not copied, to be stored unchanged.
    pub fn unchanged(&self, n: usize) -> Value {
        Value::optional(self.datum(n), Value::raw)
    }
}

/// What is wrong with a text argument; the text is not part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadText {
    /// In bytes of the database's encoding.
    TooLong {
        size: usize,
        most: usize,
    },
    NotUtf8,
}

impl BadText {
    /// `22023` or `22021`, naming the argument.
    pub fn of(self, argument: &str) -> Refusal {
        match self {
            BadText::TooLong { size, most } => Refusal::too_long(argument, size, most),
            BadText::NotUtf8 => Refusal::not_utf8(argument),
        }
    }
}
