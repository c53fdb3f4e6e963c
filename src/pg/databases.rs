//! The databases of the cluster, read from the shared catalog by a process that is connected to none.

use crate::pg::catalog;
use pgrx::pg_sys;
use std::ffi::CStr;

/// A row of `pg_database`.
pub struct DatabaseEntry {
    pub oid: pg_sys::Oid,
    /// What is no UTF-8 in it, replaced: the catalog does not say in which encoding it was given.
    pub name: String,
    /// Not a template, accepts connections, and is not half dropped.
    pub can_be_visited: bool,
}

/// Lists the databases, as `get_database_list` of `autovacuum.c` does. Must run in a transaction.
pub fn list() -> Vec<DatabaseEntry> {
    let read = |row: &pg_sys::FormData_pg_database| DatabaseEntry {
        oid: row.oid,
        // SAFETY: a `name` ends with a NUL.
        name: unsafe { CStr::from_ptr(row.datname.data.as_ptr()) }.to_string_lossy().into_owned(),
        // A connection limit of -2 marks a database whose DROP was interrupted (pg_database.h).
        can_be_visited: !row.datistemplate && row.datallowconn && row.datconnlimit != -2,
    };
    // SAFETY: the fixed part of a row of pg_database is a FormData_pg_database.
    unsafe { catalog::rows(pg_sys::DatabaseRelationId, read) }
}

/// Whether the database is there and can be visited now. Must run in a transaction.
pub fn can_be_visited(database: pg_sys::Oid) -> bool {
    list().iter().any(|d| d.oid == database && d.can_be_visited)
}
