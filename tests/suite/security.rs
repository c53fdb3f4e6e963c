//! Every way in that a caller could try.

mod lookups;
mod remaking;
mod renaming;
mod rights;
mod secrets;
mod settings;

use harness::{Calls, Database};
use postgres::Client;
use serde_json::json;

/// A schema name that must be quoted wherever it is used.
pub const ODD_SCHEMA: &str = "Pläne 1.b; DROP TABLE";

/// A role with what `idem_grant` gives to an application and nothing else.
pub fn application(db: &Database) -> String {
    let role = db.role("app");
    let mut admin = db.admin();
    admin.execute("SELECT idem_grant($1::text::name)", &[&role]).unwrap();
    admin.batch_execute("SELECT idem_protect('POST /round', 'external'), idem_protect('POST /x', 'external')").unwrap();
    role
}

/// Everything that an application does, by qualified names only: what the session's `search_path` finds must not
/// matter. `tag` keeps the keys of one round apart from those of the others.
pub fn whole_round(c: &mut Client, schema: &str, tag: &str) {
    let s = format!("\"{schema}\"");
    let claim_sql = format!(
        "SELECT (c).* FROM (SELECT {s}.idem_claim($1, 'POST /round', $2, $3::pg_catalog.bytea) AS c OFFSET 0) AS q"
    );
    let claim = |c: &mut Client, key: &str, body: &[u8]| {
        let row = c.query_one(&claim_sql, &[&"t", &format!("{tag} {key}"), &body]).unwrap();
        (
            row.get::<_, String>("outcome"),
            row.get::<_, Option<i32>>("response_code"),
            row.get::<_, Option<Vec<u8>>>("response_body"),
        )
    };
    let finish = |c: &mut Client, function: &str, key: &str, code: i32| {
        let sql = format!("SELECT {s}.{function}($1, 'POST /round', $2, $3, $4::pg_catalog.text, $5)");
        let headers = json!([["x-round", tag]]);
        c.execute(&sql, &[&"t", &format!("{tag} {key}"), &code, &"answer", &headers]).unwrap();
    };
    let answer = Some(b"answer".to_vec());
    assert_eq!(claim(c, "a", b"body"), ("execute".into(), None, None));
    assert_eq!(claim(c, "a", b"body").0, "in_progress");
    finish(c, "idem_complete", "a", 201);
    finish(c, "idem_complete", "a", 201);
    assert_eq!(claim(c, "a", b"body"), ("replay".into(), Some(201), answer.clone()));
    let (outcome, code, problem) = claim(c, "a", b"another body");
    assert_eq!((outcome.as_str(), code), ("key_reused", Some(422)));
    assert_ne!(problem, answer);
    assert_eq!(claim(c, "b", b"body").0, "execute");
    finish(c, "idem_fail", "b", 402);
    assert_eq!(claim(c, "b", b"body"), ("replay".into(), Some(402), answer));
    assert_eq!(claim(c, "c", b"body").0, "execute");
    let release = format!("SELECT {s}.idem_release('t', 'POST /round', $1)");
    assert!(c.query_one(&release, &[&format!("{tag} c")]).unwrap().get::<_, bool>(0));
    assert!(!c.query_one(&release, &[&format!("{tag} c")]).unwrap().get::<_, bool>(0));
    let again = format!("SELECT {s}.idem_complete('t', 'POST /round', $1, 500, 'other'::pg_catalog.text)");
    let refused = c.execute(&again, &[&format!("{tag} a")]).unwrap_err();
    assert_eq!(refused.code().map(|c| c.code()), Some("ID002"));
}

/// The SQLSTATE of a refused statement.
pub fn sqlstate(result: Result<impl Sized, postgres::Error>) -> String {
    match result {
        Ok(_) => "00000".into(),
        Err(e) => e.code().map_or_else(|| e.to_string(), |code| code.code().into()),
    }
}

/// A new database with the extension in this schema, which `search_path` names; claims of endpoints that are not
/// registered go through.
pub fn database_with_schema<'a>(cluster: &'a harness::Cluster, schema: &str) -> Database<'a> {
    let db = cluster.empty_database("");
    db.admin()
        .batch_execute(&format!(
            "CREATE SCHEMA \"{schema}\"; CREATE EXTENSION idempotency_enforcer SCHEMA \"{schema}\";
             ALTER DATABASE {} SET search_path = \"{schema}\", public",
            db.name()
        ))
        .unwrap();
    db.let_unregistered_through();
    db
}

#[test]
fn names_and_keys_are_data_in_a_schema_that_must_be_quoted() {
    let db = database_with_schema(harness::Cluster::shared(), ODD_SCHEMA);
    let mut c = db.connect_as(&application(&db));
    for hostile in [
        "'; DROP TABLE idempotency_keys; --",
        "\"",
        "\\",
        "$1",
        "%s%n%d",
        "@extschema@",
        "}{",
        "\u{202e}x",
        "' OR ''='",
    ] {
        assert_eq!(c.claim(hostile, hostile, hostile, b"{}").unwrap().outcome, "execute", "{hostile}");
        c.complete(hostile, hostile, hostile, 200, hostile.as_bytes()).unwrap();
        let replay = c.claim(hostile, hostile, hostile, b"{}").unwrap();
        assert_eq!((replay.outcome.as_str(), replay.response_body.as_deref()), ("replay", Some(hostile.as_bytes())));
        let refused = c.complete(hostile, hostile, hostile, 500, b"").unwrap_err();
        assert_eq!(refused.code().map(|c| c.code()), Some("ID002"));
        assert!(refused.as_db_error().unwrap().message().contains(&format!("{hostile:?}")), "{refused:?}");
    }
    assert_eq!(db.admin().value::<i64>("SELECT count(*) FROM idempotency_keys"), 9);
    whole_round(&mut c, ODD_SCHEMA, "odd");
}
