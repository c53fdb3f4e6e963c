//! Composite results, formed once without a set-returning function's detour.

use crate::pg::value::Value;
use pgrx::pg_sys;
use std::cell::Cell;
use std::ffi::CStr;

/// The OUT columns of a function: `(name, type)`.
pub struct OutRow<const N: usize> {
    pub columns: [(&'static CStr, pg_sys::BuiltinOid); N],
}

impl<const N: usize> OutRow<N> {
    /// Forms the row. `kept` holds the row type, which is made once a backend.
    pub fn form(
        &self,
        kept: &'static std::thread::LocalKey<Cell<pg_sys::TupleDesc>>,
        values: [Value; N],
    ) -> pg_sys::Datum {
        let mut datums = [pg_sys::Datum::from(0); N];
        let mut nulls = [true; N];
        for (i, value) in values.into_iter().enumerate() {
            if let Some(datum) = value.datum() {
                datums[i] = datum;
                nulls[i] = false;
            }
        }
        if kept.get().is_null() {
            kept.set(self.describe());
        }
        // SAFETY: `datums` and `nulls` have one entry a column of the descriptor, of the column's type;
        // heap_form_tuple copies what they point to. The descriptor lives as long as the process.
        unsafe {
            let tuple = pg_sys::heap_form_tuple(kept.get(), datums.as_mut_ptr(), nulls.as_mut_ptr());
            pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data)
        }
    }

    fn describe(&self) -> pg_sys::TupleDesc {
        // SAFETY: the descriptor is made in TopMemoryContext, so that it and the row type that BlessTupleDesc
        // registers for it live as long as the process; attribute numbers run from 1 to N.
        unsafe {
            let before = pg_sys::MemoryContextSwitchTo(pg_sys::TopMemoryContext);
            let descriptor = pg_sys::CreateTemplateTupleDesc(N as i32);
            for (i, (name, type_oid)) in self.columns.iter().enumerate() {
                pg_sys::TupleDescInitEntry(descriptor, (i + 1) as i16, name.as_ptr(), type_oid.value(), -1, 0);
            }
            let blessed = pg_sys::BlessTupleDesc(descriptor);
            pg_sys::MemoryContextSwitchTo(before);
            blessed
        }
    }
}
