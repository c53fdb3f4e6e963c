//! The databases of the cluster, read from the shared catalog by a process that is connected to none.

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
    let mut found = Vec::new();
    // SAFETY: the scan is opened, read and closed here, with a lock on the catalog; a tuple is valid until the next is
    // read, and its fixed part is a FormData_pg_database.
    unsafe {
        let catalog = pg_sys::table_open(pg_sys::DatabaseRelationId, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let scan = pg_sys::table_beginscan_catalog(catalog, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            let row = &*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
            found.push(DatabaseEntry {
                oid: row.oid,
                name: CStr::from_ptr(row.datname.data.as_ptr()).to_string_lossy().into_owned(),
                // A connection limit of -2 marks a database whose DROP was interrupted (pg_database.h).
                can_be_visited: !row.datistemplate && row.datallowconn && row.datconnlimit != -2,
            });
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(catalog, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
    }
    found
}

/// Whether the database is there and can be visited now. Must run in a transaction.
pub fn can_be_visited(database: pg_sys::Oid) -> bool {
    list().iter().any(|d| d.oid == database && d.can_be_visited)
}
