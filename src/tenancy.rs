//! The tenant of the session, where the administrator names the setting that holds it.

use crate::pg::encoding;
use crate::{refusal::Refusal, settings};
use std::ffi::CStr;

/// Refuses (`42501`) a tenant other than the session's, when `idempotency_enforcer.tenant_setting` is set.
///
/// An unset or empty session setting is nobody's tenant: after `SET LOCAL` a custom setting reads as empty.
pub fn check(tenant: &str) -> Result<(), Refusal> {
    let Some(setting) = settings::tenant_setting() else { return Ok(()) };
    // SAFETY: the name is NUL-terminated; the value, if there is one, is valid until the setting changes and is
    // copied at once. `missing_ok` makes an unknown name NULL, not an error.
    let current = unsafe {
        let value = pgrx::pg_sys::GetConfigOption(setting.as_ptr(), true, false);
        (!value.is_null()).then(|| CStr::from_ptr(value).to_bytes().to_vec())
    };
    match current {
        Some(current) if !current.is_empty() && current == *encoding::to_server_bytes(tenant) => Ok(()),
        _ => Err(Refusal::foreign_tenant(&setting.to_string_lossy())),
    }
}
