//! A set of rows as the result of a function, materialized in a tuplestore.
//!
//! Source: `SFRM_Materialize` of `execnodes.h`, `InitMaterializedSRF` of `funcapi.c`, which PostgreSQL 14 does not have.

use crate::pg::entry::Args;
use crate::pg::value::Value;
use crate::refusal::Refusal;
use pgrx::pg_sys;

/// The rows that a call returns; the function then answers [`crate::pg::entry::Answer::Rows`].
pub struct Rows {
    store: *mut pg_sys::Tuplestorestate,
    descriptor: pg_sys::TupleDesc,
}

impl Rows {
    /// `0A000` where a set cannot be returned, as in `CASE WHEN ... THEN f() END`.
    pub fn begin(args: &Args) -> Result<Rows, Refusal> {
        let random = pg_sys::SetFunctionReturnMode::SFRM_Materialize_Random;
        let materialize = pg_sys::SetFunctionReturnMode::SFRM_Materialize;
        // SAFETY: fcinfo is valid for the length of the call; its resultinfo, if it is a ReturnSetInfo, lives as long as the
        // query, and so do the store and the descriptor, which are made in the query's memory.
        unsafe {
            let fcinfo = args.fcinfo();
            let info = (*fcinfo).resultinfo.cast::<pg_sys::ReturnSetInfo>();
            let takes_sets = !info.is_null()
                && (*info).type_ == pg_sys::NodeTag::T_ReturnSetInfo
                && (*info).allowedModes as u32 & materialize != 0;
            if !takes_sets {
                return Err(Refusal::no_place_for_rows());
            }
            let before = pg_sys::MemoryContextSwitchTo((*(*info).econtext).ecxt_per_query_memory);
            let mut descriptor = std::ptr::null_mut();
            let class = pg_sys::get_call_result_type(fcinfo, std::ptr::null_mut(), &mut descriptor);
            assert_eq!(class, pg_sys::TypeFuncClass::TYPEFUNC_COMPOSITE, "declared without OUT columns");
            let is_random = (*info).allowedModes as u32 & random != 0;
            let store = pg_sys::tuplestore_begin_heap(is_random, false, pg_sys::work_mem);
            (*info).returnMode = materialize;
            (*info).setResult = store;
            (*info).setDesc = descriptor;
            pg_sys::MemoryContextSwitchTo(before);
            Ok(Rows { store, descriptor })
        }
    }

    /// Adds a row: one value a column of the SQL declaration, of the column's type.
    pub fn put<const N: usize>(&self, values: [Value; N]) {
        let mut datums = values.map(|value| value.datum().unwrap_or(pg_sys::Datum::from(0)));
        let mut nulls = values.map(|value| value.datum().is_none());
        // SAFETY: one datum and one flag a column, which is asserted; the store copies them.
        unsafe {
            assert_eq!((*self.descriptor).natts as usize, N, "as many values as columns");
            pg_sys::tuplestore_putvalues(self.store, self.descriptor, datums.as_mut_ptr(), nulls.as_mut_ptr());
        }
    }
}
