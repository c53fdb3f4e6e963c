//! The settings, all under the reserved prefix `idempotency_enforcer.`.
//!
//! What decides retention, safety or roles is for the administrator (superuser context, so that it can be set in
//! postgresql.conf, or by ALTER DATABASE and ALTER ROLE); what only shapes an answer is free.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::time::Duration;

use crate::pg::{encoding, placeholders};
use crate::stats::MOST_ENDPOINTS;

static MAX_BODY_BYTES: GucSetting<i32> = GucSetting::<i32>::new(65_536);
static REQUIRE_REGISTRATION: GucSetting<bool> = GucSetting::<bool>::new(true);
static RETRY_AFTER: GucSetting<i32> = GucSetting::<i32>::new(2);
static TENANT_SETTING: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static SWEEP_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(60);
static SWEEP_BATCH_SIZE: GucSetting<i32> = GucSetting::<i32>::new(5_000);
static STUCK_LOG_LIMIT: GucSetting<i32> = GucSetting::<i32>::new(20);
static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static MAX_TRACKED_ENDPOINTS: GucSetting<i32> = GucSetting::<i32>::new(500);
static DOCS_URL: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

const PREFIX: &CStr = c"idempotency_enforcer";

thread_local! {
    static TENANT_SETTING_OVERRIDDEN: Cell<bool> = const { Cell::new(false) };
}

const TENANT_SETTING_NAME: &CStr = c"idempotency_enforcer.tenant_setting";

/// Defines the settings and reserves their prefix. Called once, from `_PG_init`.
///
/// Before the library is loaded, its settings are placeholders that every session may set. PostgreSQL then drops what the
/// session had no right to set; but what came with the connection has outranked the administrator's value, which is lost.
pub fn define() {
    TENANT_SETTING_OVERRIDDEN.set(placeholders::came_with_the_connection(TENANT_SETTING_NAME));
    define_all();
}

/// Whether this session has connected with a `tenant_setting` of its own: it cannot be trusted to be the administrator's.
pub fn tenant_setting_is_overridden() -> bool {
    TENANT_SETTING_OVERRIDDEN.get()
}

fn define_all() {
    GucRegistry::define_bool_guc(
        c"idempotency_enforcer.require_registration",
        c"Refuses claims of endpoints that are not registered.",
        c"Off: their keys are required and kept 24 hours, and no commit guard holds.",
        &REQUIRE_REGISTRATION,
        GucContext::Suset,
        GucFlags::default(),
    );
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
        TENANT_SETTING_NAME,
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
    GucRegistry::define_int_guc(
        c"idempotency_enforcer.sweep_interval",
        c"Seconds between two rounds of the background worker.",
        c"0 turns the rounds off.",
        &SWEEP_INTERVAL,
        0,
        86_400,
        GucContext::Sighup,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_int_guc(
        c"idempotency_enforcer.sweep_batch_size",
        c"Rows that the background worker deletes in one transaction.",
        c"A batch holds its locks until it is committed.",
        &SWEEP_BATCH_SIZE,
        1,
        1_000_000,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"idempotency_enforcer.stuck_log_limit",
        c"Stuck claims that the background worker logs in one round, a line each.",
        c"One more line has the total.",
        &STUCK_LOG_LIMIT,
        0,
        10_000,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"idempotency_enforcer.databases",
        c"Databases that the background worker visits, separated by commas.",
        c"Empty means all.",
        &DATABASES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    // PostgreSQL refuses to define a setting of the postmaster's once it runs.
    if is_preloading() {
        GucRegistry::define_int_guc(
            c"idempotency_enforcer.max_tracked_endpoints",
            c"Endpoints that are counted one by one in idem_stats, over all databases.",
            c"The others are counted together.",
            &MAX_TRACKED_ENDPOINTS,
            1,
            MOST_ENDPOINTS as i32,
            GucContext::Postmaster,
            GucFlags::default(),
        );
    }
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

/// Whether the postmaster is loading the library, before it starts any process.
pub fn is_preloading() -> bool {
    // SAFETY: reads a per-process flag.
    unsafe { pgrx::pg_sys::process_shared_preload_libraries_in_progress }
}

/// Time between two rounds of the worker; `None`: no rounds.
pub fn sweep_interval() -> Option<Duration> {
    u64::try_from(SWEEP_INTERVAL.get()).ok().filter(|s| *s > 0).map(Duration::from_secs)
}

/// Rows to delete in one transaction.
pub fn sweep_batch_size() -> i32 {
    SWEEP_BATCH_SIZE.get()
}

/// Stuck claims to log in one round.
pub fn stuck_log_limit() -> i32 {
    STUCK_LOG_LIMIT.get()
}

/// Whether the worker visits the database of this name.
pub fn is_swept(database: &str) -> bool {
    let list = DATABASES.get().unwrap_or_default();
    let wanted = names_in(&list.to_string_lossy());
    wanted.is_empty() || wanted.iter().any(|name| name == database)
}

/// The names in a list separated by commas, each as it is, or in double quotes, a double quote in them doubled.
fn names_in(list: &str) -> Vec<String> {
    let (mut names, mut name, mut quoted) = (Vec::new(), String::new(), false);
    for c in list.chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => names.push(std::mem::take(&mut name)),
            _ => {}
        }
        if c != ',' || quoted {
            name.push(c);
        }
    }
    names.push(name);
    names.iter().map(|name| unquote(name.trim())).filter(|name| !name.is_empty()).collect()
}

fn unquote(name: &str) -> String {
    match name.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(inner) => inner.replace("\"\"", "\""),
        None => name.to_owned(),
    }
}

/// Endpoints that get counters of their own.
pub fn max_tracked_endpoints() -> usize {
    usize::try_from(MAX_TRACKED_ENDPOINTS.get()).unwrap_or(0)
}

/// Whether claims of endpoints that are not registered are refused.
pub fn require_registration() -> bool {
    REQUIRE_REGISTRATION.get()
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
    DOCS_URL.get().and_then(|url| encoding::to_utf8(url.as_bytes()))
}

/// The session setting that holds the tenant, if the administrator named one.
pub fn tenant_setting() -> Option<CString> {
    TENANT_SETTING.get().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_names() {
        assert!(names_in("").is_empty() && names_in(" , ,\"\"").is_empty());
        assert_eq!(names_in("shop, Billing ,\"a b\""), ["shop", "Billing", "a b"]);
        assert_eq!(names_in(r#""a,b","say ""hi""",c"#), ["a,b", r#"say "hi""#, "c"]);
    }
}
