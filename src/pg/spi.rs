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
    /// The memory that was current before, and outlives the connection.
    outside: pg_sys::MemoryContext,
}

/// A prepared statement that lives as long as the process, or until [`Plan::free`].
#[derive(Clone, Copy)]
pub struct Plan {
    plan: pg_sys::SPIPlanPtr,
    /// The types of the columns that it returns, as its rows are read.
    returns: &'static [pg_sys::BuiltinOid],
}

/// When a statement is planned.
#[derive(Clone, Copy)]
pub enum Planning {
    Once = pg_sys::CURSOR_OPT_GENERIC_PLAN as isize,
    /// For its parameters.
    EachTime = pg_sys::CURSOR_OPT_CUSTOM_PLAN as isize,
}

/// What a statement may see and do.
#[derive(Clone, Copy, PartialEq, Eq)]
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
        let (outside, code) = unsafe { (pg_sys::CurrentMemoryContext, pg_sys::SPI_connect()) };
        assert_eq!(code, pg_sys::SPI_OK_CONNECT as c_int, "SPI_connect failed");
        Spi { relations, outside }
    }

    pub fn prepare(
        &self,
        sql: &[u8],
        types: &[pg_sys::BuiltinOid],
        returns: &'static [pg_sys::BuiltinOid],
        planning: Planning,
    ) -> Plan {
        let sql = CString::new(sql).unwrap_or_default();
        let mut oids: Vec<pg_sys::Oid> = types.iter().map(|t| t.value()).collect();
        // SAFETY: the strings and arrays outlive the call; SPI copies them. SPI_keepplan moves the plan into
        // memory that lives as long as the process.
        unsafe {
            let plan =
                pg_sys::SPI_prepare_cursor(sql.as_ptr(), oids.len() as c_int, oids.as_mut_ptr(), planning as c_int);
            assert!(!plan.is_null(), "SPI_prepare_cursor failed");
            pg_sys::SPI_keepplan(plan);
            Plan { plan, returns }
        }
    }

    /// Refuses (`55000`) a plan that means other relations than these, or returns other types than its rows are read as.
    ///
    /// A statement names its tables; when it is planned, or planned anew, the names are looked up, and a schema may have been
    /// renamed and made anew by then. What is in its place must never run with the tables' owner's rights. So with columns: one
    /// of another type in the place of ours would be read as what it is not.
    fn check_meaning(&self, plan: Plan, allowed: &[pg_sys::Oid]) {
        // SAFETY: the plan's one source lives as long as the plan. Asking for its target list looks the names up anew, if
        // need be, and locks the relations, but does not plan: planning already runs immutable functions. Every statement
        // returns something, so none is passed over. With the locks held, executing it looks nothing up again.
        let (means_others, returns_others) = unsafe {
            let sources = pg_sys::SPI_plan_get_plan_sources(plan.plan);
            let source = pg_sys::list_nth(sources, 0).cast::<pg_sys::CachedPlanSource>();
            let returns_nothing = pg_sys::CachedPlanGetTargetList(source, std::ptr::null_mut()).is_null();
            let oids = (*source).relationOids;
            let count = if oids.is_null() { 0 } else { (*oids).length };
            let columns = (*(*source).resultDesc).attrs.as_slice((*(*source).resultDesc).natts as usize);
            (
                returns_nothing || (0..count).any(|i| !allowed.contains(&pg_sys::list_nth_oid(oids, i))),
                !columns.iter().map(|column| column.atttypid).eq(plan.returns.iter().map(|kind| kind.value())),
            )
        };
        if means_others {
            refuse(
                "the schema of extension idempotency_enforcer has changed under this call",
                "Its name now belongs to another schema than the one that the call began in.",
                "Nothing was done. Call again.",
            );
        }
        if returns_others {
            refuse(
                "a table of extension idempotency_enforcer has other columns than it was made with",
                "A column that a statement reads has another type.",
                "Nothing was done. Give the columns back their names and types.",
            );
        }
    }

    /// Runs the statement and hands its first row, if there is one, to `read`.
    pub fn first<R>(&self, plan: Plan, args: &[Value], mode: Mode, read: impl FnOnce(&Row) -> R) -> Option<R> {
        let result = self.execute(plan, args, mode);
        (result.rows() > 0).then(|| read(&result.row(0)))
    }

    /// Runs the statement and hands each row to `read`.
    pub fn all<R>(&self, plan: Plan, args: &[Value], mode: Mode, mut read: impl FnMut(&Row) -> R) -> Vec<R> {
        let result = self.execute(plan, args, mode);
        (0..result.rows()).map(|n| read(&result.row(n))).collect()
    }

    /// Runs the statement and returns the number of rows it returned or changed.
    pub fn run(&self, plan: Plan, args: &[Value], mode: Mode) -> u64 {
        self.execute(plan, args, mode);
        // SAFETY: set by the statement that has just run.
        unsafe { pg_sys::SPI_processed }
    }

    fn execute(&self, plan: Plan, args: &[Value], mode: Mode) -> Table {
        self.check_meaning(plan, &self.relations);
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
                plan.plan,
                datums.as_mut_ptr(),
                nulls.as_ptr(),
                snapshot,
                std::ptr::null_mut(),
                read_only,
                true,
                0,
            );
            assert!(code > 0, "SPI_execute_snapshot failed with {code}");
            Table { table: pg_sys::SPI_tuptable, outside: self.outside }
        }
    }
}

/// Raises `55000`.
fn refuse(message: &'static str, detail: &'static str, hint: &'static str) {
    let state = pgrx::PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
    pg_sys::panic::ErrorReport::new(state, message, "idempotency_enforcer")
        .set_detail(detail)
        .set_hint(hint)
        .report(pgrx::PgLogLevel::ERROR);
}

/// What a statement has returned; freed when dropped, also when it is empty: a caller that waits asks many times.
struct Table {
    table: *mut pg_sys::SPITupleTable,
    outside: pg_sys::MemoryContext,
}

impl Table {
    fn rows(&self) -> usize {
        // SAFETY: NULL, or the table of the last statement.
        unsafe { self.table.as_ref().map_or(0, |table| table.numvals as usize) }
    }

    fn row(&self, n: usize) -> Row {
        assert!(n < self.rows());
        // SAFETY: the table has that many rows, which live as long as it does.
        unsafe { Row { tuple: *(*self.table).vals.add(n), descriptor: (*self.table).tupdesc, outside: self.outside } }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // SAFETY: SPI takes NULL, too; after an ERROR the abort frees it.
            unsafe { pg_sys::SPI_freetuptable(self.table) };
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
        unsafe { pg_sys::SPI_freeplan(self.plan) };
    }
}

/// A row of a result, valid while it is read.
pub struct Row {
    tuple: pg_sys::HeapTuple,
    descriptor: pg_sys::TupleDesc,
    outside: pg_sys::MemoryContext,
}

impl Row {
    fn get<T: FromDatum>(&self, column: usize) -> Option<T> {
        // SAFETY: the statement gives the column the type that `T` reads.
        self.datum(column).and_then(|datum| unsafe { T::from_datum(datum, false) })
    }

    fn datum(&self, column: usize) -> Option<pg_sys::Datum> {
        let mut is_null = false;
        // SAFETY: tuple and descriptor belong to the result being read.
        let datum = unsafe { pg_sys::SPI_getbinval(self.tuple, self.descriptor, column as c_int + 1, &mut is_null) };
        (!is_null).then_some(datum)
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

    /// A text in UTF-8; empty for NULL. For columns of bounded length.
    pub fn text(&self, column: usize) -> String {
        let bytes = self.get::<&[u8]>(column).unwrap_or_default();
        String::from_utf8_lossy(encoding::to_utf8_bytes(bytes).unwrap_or(bytes)).into_owned()
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

    pub fn is_null(&self, column: usize) -> bool {
        self.datum(column).is_none()
    }

    /// A variable-length value as it is, valid while the row is read.
    pub fn value(&self, column: usize) -> Value {
        Value::optional(self.datum(column), Value::raw)
    }

    /// A variable-length value that outlives the connection, in PostgreSQL's memory: its size is the stored row's, so to
    /// have no room for it must be an ERROR (53200) and not the end of the process.
    pub fn kept(&self, column: usize) -> Value {
        // SAFETY: the column is of variable length; the copy is made in memory that outlives the connection.
        Value::optional(self.datum(column), |datum| unsafe {
            let before = pg_sys::MemoryContextSwitchTo(self.outside);
            let copy = pg_sys::pg_detoast_datum_copy(datum.cast_mut_ptr());
            pg_sys::MemoryContextSwitchTo(before);
            Value::raw(pg_sys::Datum::from(copy))
        })
    }
}
