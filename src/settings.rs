//! The settings, all under the reserved prefix `idempotency_enforcer.`.
//!
//! What decides retention, safety or roles is for the administrator (superuser context, so that it can be set in
//! postgresql.conf, or by ALTER DATABASE and ALTER ROLE); what only shapes an answer is free.

use pgrx::guc::{GucContext, GucFlags, GucRegistry, GucSetting};
use std::cell::Cell;
use std::ffi::{CStr, CString};
use std::time::Duration;

use crate::pg::{encoding, placeholders};

static MAX_BODY_BYTES: GucSetting<i32> = GucSetting::<i32>::new(65_536);
static REQUIRE_REGISTRATION: GucSetting<bool> = GucSetting::<bool>::new(true);
static RETRY_AFTER: GucSetting<i32> = GucSetting::<i32>::new(2);
static TENANT_SETTING: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static SWEEP_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(60);
static SWEEP_BATCH_SIZE: GucSetting<i32> = GucSetting::<i32>::new(5_000);
static STUCK_LOG_LIMIT: GucSetting<i32> = GucSetting::<i32>::new(20);
static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));
static MAX_TRACKED_ENDPOINTS: GucSetting<i32> = GucSetting::<i32>::new(1_000);
static DOCS_URL: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

const PREFIX: &CStr = c"idempotency_enforcer";

/// The settings that bound what a session may do: what the administrator has set must hold in every session.
const MUST_HOLD: [&CStr; 3] = [
    c"idempotency_enforcer.require_registration",
    c"idempotency_enforcer.max_body_bytes",
    c"idempotency_enforcer.tenant_setting",
];

thread_local! {
    static LOST: Cell<Option<&'static CStr>> = const { Cell::new(None) };
}

/// Defines the settings and reserves their prefix. Called once, from `_PG_init`.
///
/// Before the library is loaded, its settings are placeholders that every session may set. When they are defined,
/// PostgreSQL drops what the session had no right to set. What was dropped of a SET gives way to the administrator's
/// value; but a value that came with the connection has outranked that one, which is lost.
pub fn define() {
    let presented = MUST_HOLD.map(placeholders::came_with_the_connection);
    define_all();
    let was_dropped = |(name, presented)| presented && !placeholders::came_with_the_connection(name);
    LOST.set(MUST_HOLD.into_iter().zip(presented).find(|of| was_dropped(*of)).map(|(name, _)| name));
}

/// The full name of a setting whose value from the administrator this session has lost, by connecting with one of its
/// own: it may be wider now.
pub fn lost() -> Option<&'static str> {
    LOST.get().and_then(|name| name.to_str().ok())
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
        100_000,
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
    GucRegistry::define_int_guc(
        c"idempotency_enforcer.max_tracked_endpoints",
        c"Registered endpoints that are counted one by one in idem_stats, over all databases.",
        c"The others are counted together. Has no effect unless the library is preloaded.",
        &MAX_TRACKED_ENDPOINTS,
        1,
        100_000,
        // PostgreSQL refuses to define a setting of the postmaster's once it runs. Then there is nothing to set either,
        // but a line in postgresql.conf must not be a stranger to the sessions that load the library.
        if is_preloading() { GucContext::Postmaster } else { GucContext::Sighup },
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

/// Whether a claim of an endpoint that is not registered is refused.
pub fn require_registration() -> bool {
    REQUIRE_REGISTRATION.get()
}

/// Endpoints that get counters of their own, over all databases.
pub fn max_tracked_endpoints() -> usize {
    usize::try_from(MAX_TRACKED_ENDPOINTS.get()).unwrap_or(0)
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
