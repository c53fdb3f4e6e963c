//! Reading system catalogs without a statement: in a process that is connected to no database, or where a statement
//! would be seen.

use pgrx::pg_sys;

/// Hands each row of a catalog to `read`. Must run in a transaction.
///
/// # Safety
///
/// The fixed part of the catalog's rows must begin with a `Form`.
pub unsafe fn rows<Form, R>(catalog: pg_sys::Oid, mut read: impl FnMut(&Form) -> R) -> Vec<R> {
    let mut found = Vec::new();
    // SAFETY: the scan is opened, read and closed here, with a lock on the catalog; a tuple is valid until the next is
    // read, and its fixed part is what the caller says.
    unsafe {
        let relation = pg_sys::table_open(catalog, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
        let scan = pg_sys::table_beginscan_catalog(relation, 0, std::ptr::null_mut());
        loop {
            let tuple = pg_sys::heap_getnext(scan, pg_sys::ScanDirection::ForwardScanDirection);
            if tuple.is_null() {
                break;
            }
            found.push(read(&*pg_sys::GETSTRUCT(tuple).cast::<Form>()));
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(relation, pg_sys::AccessShareLock as pg_sys::LOCKMODE);
    }
    found
}
