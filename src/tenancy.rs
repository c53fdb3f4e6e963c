//! The tenant of the session, where the administrator names the setting that holds it.

use crate::pg::{encoding, placeholders};
use crate::{refusal::Refusal, settings};

/// Refuses (`42501`) a tenant other than the session's, when `idempotency_enforcer.tenant_setting` is set, and any tenant in
/// a session in which a setting of the administrator's is not to be trusted.
///
/// An unset or empty session setting is nobody's tenant: after `SET LOCAL` a custom setting reads as empty.
pub fn check(tenant: &str) -> Result<(), Refusal> {
    if let Some(setting) = settings::lost() {
        return Err(Refusal::setting_lost(setting));
    }
    let Some(setting) = settings::tenant_setting() else { return Ok(()) };
    match placeholders::current_value(&setting) {
        Some(current) if !current.is_empty() && current == *encoding::to_server_bytes(tenant) => Ok(()),
        _ => Err(Refusal::foreign_tenant(&encoding::shown(&setting))),
    }
}
