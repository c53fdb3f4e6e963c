//! `idempotency_enforcer.tenant_setting` and the other settings.

use harness::{Calls, Cluster, Database, Failure};
use postgres::{Client, NoTls};

/// Every application function, called for one tenant.
const CALLS: &[&str] = &[
    "idem_claim('other', 'POST /x', 'k', ''::bytea)",
    "idem_claim('other', 'POST /x', 'k', ''::text)",
    "idem_claim('other', 'POST /x', NULL, ''::text)",
    "idem_complete('other', 'POST /x', 'k', 200, ''::bytea)",
    "idem_complete('other', 'POST /x', 'k', 200, ''::text)",
    "idem_fail('other', 'POST /x', 'k', 500, ''::bytea)",
    "idem_fail('other', 'POST /x', 'k', 500, ''::text)",
    "idem_release('other', 'POST /x', 'k')",
    "idem_checkpoint('other', 'POST /x', 'k', 'called')",
    "idem_checkpoint('other', 'POST /x', NULL, 'called')",
    "idem_release('other', 'POST /x', NULL)",
    "idem_claim('other', 'POST /x/{id}', 'k', ''::text, '/x/1')",
];

/// A database whose tenant is `app.tenant_id`, and an application role for it. Claims of `other` are stored.
fn database() -> (Database<'static>, String) {
    let db = Cluster::shared().lenient_database();
    let role = db.role("app");
    let mut admin = db.admin();
    admin.claim("other", "POST /x", "k", b"").unwrap();
    admin
        .batch_execute(&format!(
            "SELECT idem_grant('{role}');
             ALTER DATABASE {} SET idempotency_enforcer.tenant_setting = 'app.tenant_id'",
            db.name()
        ))
        .unwrap();
    (db, role)
}

fn assert_refused(c: &mut Client, why: &str) {
    for call in CALLS {
        let refused = Failure::of(c.query(&format!("SELECT {call}"), &[]));
        assert_eq!(refused.sqlstate, "42501", "{why}: {call}: {refused:?}");
        let names_setting = refused.message.contains("tenant_id")
            && refused.detail.contains("app.tenant_id")
            && refused.hint.contains("app.tenant_id");
        let is_lost = refused.message.contains("a value of its own for idempotency_enforcer.tenant_setting");
        assert!(names_setting || is_lost, "{refused:?}");
    }
}

#[test]
fn a_session_reaches_its_own_tenant_and_no_other() {
    let (db, role) = database();
    for user in [role.as_str(), "postgres"] {
        let mut c = db.connect_as(user);
        assert_refused(&mut c, "before it is set");
        for tenant in ["", "t", "Other", "other ", " other", "othe", "otherx", "*", "%", "null"] {
            c.query("SELECT set_config('app.tenant_id', $1, false)", &[&tenant]).unwrap();
            assert_refused(&mut c, tenant);
        }
        c.batch_execute("SET app.tenant_id = 'téñant'").unwrap();
        assert_eq!(c.claim("téñant", "POST /x", user, b"").unwrap().outcome, "execute");
        c.complete("téñant", "POST /x", user, 200, b"").unwrap();
        assert_eq!(c.claim("téñant", "POST /x", user, b"").unwrap().outcome, "replay");
        assert!(!c.release("téñant", "POST /x", "none").unwrap());
        c.batch_execute("SET app.tenant_id = 'other'").unwrap();
        assert_eq!(c.claim("other", "POST /x", "k", b"").unwrap().outcome, "in_progress");
    }
}

/// Nobody's session is the empty tenant's by accident: a setting that was set locally reads as empty afterwards.
#[test]
fn an_empty_setting_is_nobodys_tenant() {
    let (db, role) = database();
    let mut c = db.connect_as(&role);
    for prepare in ["SELECT 1", "SET app.tenant_id = ''", "BEGIN; SET LOCAL app.tenant_id = 't'; COMMIT"] {
        c.batch_execute(prepare).unwrap();
        assert_eq!(Failure::of(c.claim("", "POST /x", "k", b"")).sqlstate, "42501", "{prepare}");
        assert_refused(&mut c, prepare);
    }
}

/// Pooled connections change tenants with every transaction.
#[test]
fn the_tenant_may_change_with_every_transaction() {
    let (db, role) = database();
    let mut c = db.connect_as(&role);
    for tenant in ["a", "b", "a"] {
        let mut t = c.transaction().unwrap();
        t.query("SELECT set_config('app.tenant_id', $1, true)", &[&tenant]).unwrap();
        t.claim(tenant, "POST /x", "k", b"").unwrap();
        let other = if tenant == "a" { "b" } else { "a" };
        assert_eq!(Failure::of(t.claim(other, "POST /x", "k", b"")).sqlstate, "42501");
    }
}

#[test]
fn a_role_cannot_override_the_setting_in_its_session() {
    let (db, role) = database();
    for attempt in [
        "SET idempotency_enforcer.tenant_setting = ''",
        "SET idempotency_enforcer.tenant_setting = 'x.y'; SET x.y = 'other'",
        "SET SESSION idempotency_enforcer.tenant_setting TO DEFAULT",
        "RESET idempotency_enforcer.tenant_setting",
        "RESET ALL",
        "DISCARD ALL",
        "SELECT set_config('idempotency_enforcer.tenant_setting', '', false)",
        "UPDATE pg_settings SET setting = '' WHERE name = 'idempotency_enforcer.tenant_setting'",
        "ALTER ROLE CURRENT_USER SET idempotency_enforcer.tenant_setting = ''",
        "SET idempotency_enforcer = ''",
    ] {
        // As a placeholder, before the library is loaded by the first call; then as the setting it is.
        let mut c = db.connect_as(&role);
        let _ = c.batch_execute(attempt);
        assert_refused(&mut c, attempt);
        let _ = c.batch_execute(attempt);
        assert_refused(&mut c, attempt);
        let mut again = db.connect_as(&role);
        assert_refused(&mut again, attempt);
        // In the transaction that makes the first call, too.
        let mut late = db.connect_as(&role);
        let mut t = late.transaction().unwrap();
        if t.batch_execute(&attempt.replace("SET idem", "SET LOCAL idem")).is_ok() {
            assert_eq!(Failure::of(t.claim("other", "POST /x", "k", b"")).sqlstate, "42501", "{attempt}");
        }
    }
}

/// Options of the connection come before those of the database, and before the library is loaded.
#[test]
fn a_role_cannot_override_the_setting_by_connection_options() {
    let (db, role) = database();
    for options in [
        "-c idempotency_enforcer.tenant_setting=",
        "-c idempotency_enforcer.tenant_setting=x.y -c x.y=other",
        "--idempotency-enforcer.tenant-setting=",
    ] {
        let config = &mut Cluster::shared().config(db.name(), &role);
        let Ok(mut c) = config.options(options).connect(NoTls) else { continue };
        assert_refused(&mut c, options);
    }
}

#[test]
fn an_administrator_may_set_it_for_a_session_and_for_a_role() {
    let db = Cluster::shared().lenient_database();
    let role = db.role("app");
    let mut c = db.admin();
    c.batch_execute(&format!(
        "SELECT idem_grant('{role}');
         ALTER ROLE {role} IN DATABASE {} SET idempotency_enforcer.tenant_setting = 'application_name';
         SET idempotency_enforcer.tenant_setting = 'never.defined'",
        db.name()
    ))
    .unwrap();
    assert_eq!(Failure::of(c.claim("other", "POST /x", "k", b"")).sqlstate, "42501");
    c.batch_execute("RESET idempotency_enforcer.tenant_setting").unwrap();
    assert_eq!(c.claim("other", "POST /x", "k", b"").unwrap().outcome, "execute");
    let mut app = db.connect_as(&role);
    assert_eq!(Failure::of(app.claim("other", "POST /x", "k", b"")).sqlstate, "42501");
    app.batch_execute("SET application_name = 'other'").unwrap();
    assert_eq!(app.claim("other", "POST /x", "k", b"").unwrap().outcome, "in_progress");
}

#[test]
fn a_role_sets_what_only_shapes_its_answers() {
    let db = Cluster::shared().lenient_database();
    let role = db.role("app");
    db.admin().batch_execute(&format!("SELECT idem_grant('{role}')")).unwrap();
    let mut c = db.connect_as(&role);
    // Set before the library is loaded, a limit of its own is dropped.
    c.batch_execute("SET idempotency_enforcer.max_body_bytes = 1").unwrap();
    c.claim("t", "POST /x", "k", b"").unwrap();
    assert_eq!(c.value::<String>("SHOW idempotency_enforcer.max_body_bytes"), "64kB");
    for setting in ["max_body_bytes = 1", "max_body_bytes = '100MB'", "tenant_setting = ''"] {
        let refused = Failure::of(c.batch_execute(&format!("SET idempotency_enforcer.{setting}")));
        assert_eq!(refused.sqlstate, "42501", "{setting}");
    }
    c.batch_execute(
        "SET idempotency_enforcer.retry_after = 5; SET idempotency_enforcer.docs_url = 'https://x.example'",
    )
    .unwrap();
}

#[test]
fn settings_have_bounds_and_the_prefix_is_reserved() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.claim("t", "POST /x", "k", b"").unwrap();
    for (setting, sqlstate) in [
        ("max_body_bytes = -1", "22023"),
        ("max_body_bytes = '1GB'", "22023"),
        ("retry_after = -1", "22023"),
        ("retry_after = '2 days'", "22023"),
        ("retry_after = 'soon'", "22023"),
        ("tenant_settings = 'app.tenant_id'", "42602"),
        ("nonsense = 1", "42602"),
    ] {
        if sqlstate == "42602" && Cluster::shared().installation().major() < 15 {
            continue; // PostgreSQL 14 cannot reserve a prefix
        }
        let refused = Failure::of(c.batch_execute(&format!("SET idempotency_enforcer.{setting}")));
        assert_eq!(refused.sqlstate, sqlstate, "{setting}: {refused:?}");
    }
    let described = "SELECT count(*) FROM pg_settings
                      WHERE name LIKE 'idempotency\\_enforcer.%' AND short_desc <> '' AND extra_desc <> ''";
    assert_eq!(
        c.value::<i64>(described),
        c.value::<i64>("SELECT count(*) FROM pg_settings WHERE name LIKE 'idempotency\\_e%'")
    );
}
