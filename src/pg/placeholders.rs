//! Settings as PostgreSQL keeps them: values by name, and the placeholders of a library that is not loaded yet.

use pgrx::pg_sys;
use std::ffi::CStr;

/// The value of any setting, in the database's encoding; `None` when there is no such setting.
pub fn current_value(name: &CStr) -> Option<Vec<u8>> {
    // SAFETY: the name is NUL-terminated; the value, if there is one, is valid until the setting changes and is copied
    // at once. `missing_ok` makes an unknown name NULL, not an error.
    unsafe {
        let value = pg_sys::GetConfigOption(name.as_ptr(), true, false);
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes().to_vec())
    }
}

/// Whether the setting has the value that came with the connection (`options`, `PGOPTIONS`, the startup packet), which
/// outranks what the administrator has set in a file, for the database, or for the role.
pub fn came_with_the_connection(name: &CStr) -> bool {
    all().iter().any(|setting| {
        // SAFETY: PostgreSQL's table of settings holds valid records with NUL-terminated names.
        let (setting, this) = unsafe { (&**setting, CStr::from_ptr((**setting).name)) };
        this.to_bytes().eq_ignore_ascii_case(name.to_bytes()) && setting.reset_source == pg_sys::GucSource::PGC_S_CLIENT
    })
}

fn all() -> &'static [*mut pg_sys::config_generic] {
    // SAFETY: the table and its size are read together; nothing defines a setting while the slice is used.
    unsafe {
        #[cfg(any(feature = "pg14", feature = "pg15"))]
        let (table, count) = (pg_sys::get_guc_variables(), pg_sys::GetNumConfigOptions());
        #[cfg(not(any(feature = "pg14", feature = "pg15")))]
        let (table, count) = {
            let mut count = 0;
            (pg_sys::get_guc_variables(&mut count), count)
        };
        std::slice::from_raw_parts(table, count as usize)
    }
}
