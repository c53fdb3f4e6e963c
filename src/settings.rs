//! The settings, all under the reserved prefix `idempotency_enforcer.`.
//!
//! What decides retention, safety or roles is for the administrator (superuser context, so that it can be set in
//! postgresql.conf, or by ALTER DATABASE and ALTER ROLE); what only shapes an answer is free.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::ffi::{CStr, CString};

static MAX_BODY_BYTES: GucSetting<i32> = GucSetting::<i32>::new(65_536);
static RETRY_AFTER: GucSetting<i32> = GucSetting::<i32>::new(2);
static TENANT_SETTING: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static DOCS_URL: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

const PREFIX: &CStr = c"idempotency_enforcer";

/// Defines the settings and reserves their prefix. Called once, from `_PG_init`.
pub fn define() {
    GucRegistry::define_int_guc(
        c"idempotency_enforcer.max_body_bytes",
        c"Largest response body that is stored, where the endpoint does not say otherwise.",
        c"A larger one needs a resource_ref.",
        &MAX_BODY_BYTES,
        0,
        512 * 1024 * 1024,
        GucContext::Suset,
        GucFlags::UNIT_BYTE,
    );
    GucRegistry::define_int_guc(
        c"idempotency_enforcer.retry_after",
        c"Seconds that a client is told to wait while the first request is in progress.",
        c"Sent in the retry-after header of a 409.",
        &RETRY_AFTER,
        0,
        86_400,
        GucContext::Userset,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_string_guc(
        c"idempotency_enforcer.tenant_setting",
        c"Name of the session setting that holds the current tenant.",
        c"When set, application functions refuse every other tenant_id.",
        &TENANT_SETTING,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"idempotency_enforcer.docs_url",
        c"URL of your API's documentation on idempotency keys.",
        c"Becomes the type of the problem documents (RFC 9457).",
        &DOCS_URL,
        GucContext::Userset,
        GucFlags::default(),
    );
    // SAFETY: the prefix is NUL-terminated and static.
    #[cfg(feature = "pg14")]
    unsafe {
        pgrx::pg_sys::EmitWarningsOnPlaceholders(PREFIX.as_ptr());
    }
    // SAFETY: the prefix is NUL-terminated and static.
    #[cfg(not(feature = "pg14"))]
    unsafe {
        pgrx::pg_sys::MarkGUCPrefixReserved(PREFIX.as_ptr());
    }
}

/// Largest response body to store, in bytes.
pub fn max_body_bytes() -> i32 {
    MAX_BODY_BYTES.get()
}

/// Seconds for the `retry-after` header.
pub fn retry_after() -> i32 {
    RETRY_AFTER.get()
}

/// The `type` of problem documents.
pub fn docs_url() -> Option<String> {
    DOCS_URL.get().and_then(|url| url.into_string().ok())
}

/// The session setting that holds the tenant, if the administrator named one.
pub fn tenant_setting() -> Option<CString> {
    TENANT_SETTING.get().filter(|name| !name.is_empty())
}
