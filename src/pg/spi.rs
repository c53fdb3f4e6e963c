//! Kept plans over the Server Programming Interface, with the snapshot chosen by the caller.
//!
//! pgrx's `Spi` decides by itself whether a statement is read-only; here that is part of the promise (a replay
//! writes nothing and takes no transaction id), and at REPEATABLE READ a look past the snapshot is needed to tell
//! "absent" from "too new to see", as `ri_triggers.c` does with `SPI_execute_snapshot`.

use pgrx::datum::{Interval, TimestampWithTimeZone};
use pgrx::{pg_sys, FromDatum};
use std::ffi::{c_int, CString};

use crate::pg::encoding;
use crate::pg::value::Value;

/// A connection to SPI; finished when dropped.
pub struct Spi {
    /// What statements may read and write.
    relations: Vec<pg_sys::Oid>,
}

/// A prepared statement that lives as long as the process, or until [`Plan::free`].
#[derive(Clone, Copy)]
pub struct Plan(pg_sys::SPIPlanPtr);

/// When a statement is planned.
#[derive(Clone, Copy)]
pub enum Planning {
    Once = pg_sys::CURSOR_OPT_GENERIC_PLAN as isize,
    /// For its parameters.
    EachTime = pg_sys::CURSOR_OPT_CUSTOM_PLAN as isize,
}

/// What a statement may see and do.
#[derive(Clone, Copy)]
pub enum Mode {
    /// May write; sees what is committed now (READ COMMITTED) or at the transaction's snapshot.
    Write,
    /// Only reads, seeing the same as `Write`.
    Read,
    /// Only reads, seeing what is committed now at every isolation level.
    ReadLatest,
}

impl Spi {
    pub fn connect(relations: Vec<pg_sys::Oid>) -> Self {
        // SAFETY: pushes an SPI frame; an ERROR before `drop` pops it with the (sub)transaction.
        let code = unsafe { pg_sys::SPI_connect() };
        assert_eq!(code, pg_sys::SPI_OK_CONNECT as c_int, "SPI_connect failed");
        Spi { relations }
    }

    pub fn prepare(&self, sql: &[u8], types: &[pg_sys::BuiltinOid], planning: Planning) -> Plan {
        let sql = CString::new(sql).unwrap_or_default();
        let mut oids: Vec<pg_sys::Oid> = types.iter().map(|t| t.value()).collect();
        // SAFETY: the strings and arrays outlive the call; SPI copies them. SPI_keepplan moves the plan into
        // memory that lives as long as the process.
        unsafe {
            let plan =
                pg_sys::SPI_prepare_cursor(sql.as_ptr(), oids.len() as c_int, oids.as_mut_ptr(), planning as c_int);
            assert!(!plan.is_null(), "SPI_prepare_cursor failed");
            pg_sys::SPI_keepplan(plan);
            Plan(plan)
        }
    }

    /// Refuses (`55000`) a plan that means other relations than these.
    ///
    /// A statement names its tables; when it is planned, or planned anew, the names are looked up, and a schema may have been
    /// renamed and made anew by then. What is in its place must never run with the tables' owner's rights.
    fn check_relations(&self, plan: Plan, allowed: &[pg_sys::Oid]) {
        // SAFETY: the plan's one source lives as long as the plan. Asking for its target list looks the names up anew, if
        // need be, and locks the relations, but does not plan: planning already runs immutable functions. Every statement
        // returns something, so none is passed over. With the locks held, executing it looks nothing up again.
        let means_others = unsafe {
            let sources = pg_sys::SPI_plan_get_plan_sources(plan.0);
            let source = pg_sys::list_nth(sources, 0).cast::<pg_sys::CachedPlanSource>();
            let returns_nothing = pg_sys::CachedPlanGetTargetList(source, std::ptr::null_mut()).is_null();
            let oids = (*source).relationOids;
            let count = if oids.is_null() { 0 } else { (*oids).length };
            returns_nothing || (0..count).any(|i| !allowed.contains(&pg_sys::list_nth_oid(oids, i)))
        };
        if means_others {
            pg_sys::panic::ErrorReport::new(
                pgrx::PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                "the schema of extension idempotency_enforcer has changed under this call",
                "idempotency_enforcer",
            )
            .set_detail("Its name now belongs to another schema than the one that the call began in.")
            .set_hint("Nothing was done. Call again.")
            .report(pgrx::PgLogLevel::ERROR);
        }
    }

    /// Runs the statement and hands its first row, if there is one, to `read`.
    pub fn first<R>(&self, plan: Plan, args: &[Value], mode: Mode, read: impl FnOnce(&Row) -> R) -> Option<R> {
        // SAFETY: `run` has left SPI_tuptable describing the rows of this statement; it is valid until the next.
        unsafe {
            if self.run(plan, args, mode) == 0 {
                return None;
            }
            let table = pg_sys::SPI_tuptable;
            let row = Row { tuple: *(*table).vals, descriptor: (*table).tupdesc };
            let result = read(&row);
            pg_sys::SPI_freetuptable(table);
            Some(result)
        }
    }

    /// Runs the statement and hands each row to `read`.
    pub fn all<R>(&self, plan: Plan, args: &[Value], mode: Mode, mut read: impl FnMut(&Row) -> R) -> Vec<R> {
        let rows = self.run(plan, args, mode) as usize;
        if rows == 0 {
            return Vec::new();
        }
        // SAFETY: as in `first`; the statement returned `rows` rows.
        unsafe {
            let table = pg_sys::SPI_tuptable;
            let result =
                (0..rows).map(|i| read(&Row { tuple: *(*table).vals.add(i), descriptor: (*table).tupdesc })).collect();
            pg_sys::SPI_freetuptable(table);
            result
        }
    }

    /// Runs the statement and returns the number of rows it returned or changed.
    pub fn run(&self, plan: Plan, args: &[Value], mode: Mode) -> u64 {
        self.check_relations(plan, &self.relations);
        let mut datums: Vec<pg_sys::Datum> = args.iter().map(|v| v.datum().unwrap_or(pg_sys::Datum::from(0))).collect();
        let nulls: Vec<std::ffi::c_char> =
            args.iter().map(|v| if v.datum().is_some() { b' ' } else { b'n' } as _).collect();
        // SAFETY: one datum and one null flag a parameter, of the type it was prepared with; both outlive the call.
        // A snapshot is given for reading only: SPI pushes it for the time of the statement.
        unsafe {
            let (snapshot, read_only) = match mode {
                Mode::Write => (std::ptr::null_mut(), false),
                Mode::Read => (pg_sys::GetTransactionSnapshot(), true),
                Mode::ReadLatest => (pg_sys::GetLatestSnapshot(), true),
            };
            let code = pg_sys::SPI_execute_snapshot(
                plan.0,
                datums.as_mut_ptr(),
                nulls.as_ptr(),
                snapshot,
                std::ptr::null_mut(),
                read_only,
                true,
                0,
            );
            assert!(code > 0, "SPI_execute_snapshot failed with {code}");
            pg_sys::SPI_processed
        }
    }
}

impl Drop for Spi {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return; // an ERROR is under way: the abort pops the frame
        }
        // SAFETY: pops the frame that `connect` pushed.
        unsafe { pg_sys::SPI_finish() };
    }
}

impl Plan {
    pub fn free(self) {
        // SAFETY: the plan was kept by `prepare` and is not used again: `Plan`s live in one place, the table of
        // plans in tables.rs, which is emptied first.
        unsafe { pg_sys::SPI_freeplan(self.0) };
    }
}

/// A row of a result, valid while it is read.
pub struct Row {
    tuple: pg_sys::HeapTuple,
    descriptor: pg_sys::TupleDesc,
}

impl Row {
    fn get<T: FromDatum>(&self, column: usize) -> Option<T> {
        let mut is_null = false;
        // SAFETY: tuple and descriptor belong to the result being read; the statement gives the column the type
        // that `T` reads.
        unsafe {
            let datum = pg_sys::SPI_getbinval(self.tuple, self.descriptor, column as c_int + 1, &mut is_null);
            T::from_datum(datum, is_null)
        }
    }

    pub fn bool(&self, column: usize) -> Option<bool> {
        self.get(column)
    }

    pub fn int(&self, column: usize) -> Option<i32> {
        self.get(column)
    }

    /// 0 for NULL.
    pub fn bigint(&self, column: usize) -> i64 {
        self.get(column).unwrap_or(0)
    }

    pub fn optional_bigint(&self, column: usize) -> Option<i64> {
        self.get(column)
    }

    /// A text in UTF-8; empty for NULL.
    pub fn text(&self, column: usize) -> String {
        let bytes = self.payload(column).unwrap_or_default();
        String::from_utf8_lossy(&encoding::to_utf8_bytes(&bytes)).into_owned()
    }

    pub fn interval(&self, column: usize) -> Option<Interval> {
        self.get(column)
    }

    pub fn timestamptz(&self, column: usize) -> Option<TimestampWithTimeZone> {
        self.get(column)
    }

    pub fn uuid(&self, column: usize) -> Option<[u8; 16]> {
        self.get::<pgrx::Uuid>(column).map(|u| *u.as_bytes())
    }

    /// The content of a variable-length value, detoasted, to be passed on unchanged.
    pub fn payload(&self, column: usize) -> Option<Vec<u8>> {
        self.get(column)
    }
}
