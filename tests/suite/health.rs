//! `idem_health()`: each finding is provoked on a real server, and its remedy, run as it is, makes it vanish.

mod hostile;
mod names;
mod places;
mod rights;
mod server;
mod tables;

use harness::{Cluster, Database};
use postgres::Client;
use std::io::Write;
use std::process::Stdio;

const NOT_PRELOADED: &str = "The library is not preloaded";

#[derive(Debug)]
struct Finding {
    severity: String,
    finding: String,
    remedy: String,
}

fn health(c: &mut Client) -> Vec<Finding> {
    let rows = c.query("SELECT severity, finding, remedy FROM idem_health()", &[]).expect("idem_health()");
    let read = |r: postgres::Row| Finding { severity: r.get(0), finding: r.get(1), remedy: r.get(2) };
    rows.into_iter().map(read).collect()
}

/// The findings about the tables, for a server that does not preload the library.
fn about_tables(c: &mut Client) -> Vec<Finding> {
    health(c).into_iter().filter(|f| !f.finding.starts_with(NOT_PRELOADED)).collect()
}

/// Runs a remedy as a person would paste it, and what its comment says has to follow.
fn mend(db: &Database, remedy: &str) {
    assert!(!remedy.contains(['\n', '\r']), "one line: {remedy:?}");
    db.admin().prepare(remedy).unwrap_or_else(|e| panic!("one statement: {remedy}: {e}"));
    paste(db, remedy);
    if remedy.contains("; -- then SELECT pg_reload_conf();") {
        paste(db, "SELECT pg_reload_conf();");
    }
}

/// Has psql run it.
fn paste(db: &Database, statement: &str) {
    let mut psql = db
        .cluster()
        .installation()
        .client("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres", "-d", db.name()])
        .args(["-p", &db.cluster().port().to_string()])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql");
    psql.stdin.take().expect("its input").write_all(statement.as_bytes()).expect("the statement");
    let output = psql.wait_with_output().expect("psql");
    assert!(output.status.success(), "{statement}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// The one finding that begins like this.
fn the(found: Vec<Finding>, severity: &str, start: &str) -> Finding {
    let listed = format!("{found:#?}");
    let mut these: Vec<Finding> = found.into_iter().filter(|f| f.finding.starts_with(start)).collect();
    assert_eq!(these.len(), 1, "{start:?} in {listed}");
    let this = these.remove(0);
    assert_eq!(this.severity, severity, "{this:?}");
    this
}

/// Breaks something that is well, expects exactly these findings, mends them in their order, and expects none.
fn break_and_mend(provocation: &str, expected: &[(&str, &str)]) {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /x')").unwrap();
    assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
    c.batch_execute(provocation).unwrap();
    let found = about_tables(&mut c);
    let said: Vec<(&str, &str)> = found.iter().map(|f| (f.severity.as_str(), f.finding.as_str())).collect();
    assert_eq!(said, expected, "{found:#?}");
    for finding in found {
        mend(&db, &finding.remedy);
    }
    assert!(about_tables(&mut c).is_empty(), "{:#?}", about_tables(&mut c));
}

#[test]
fn monitors_and_operators_may_ask_and_others_may_not() {
    let db = Cluster::shared().database();
    let (monitor, operator, other) = (db.role("monitor"), db.role("operator"), db.role("other"));
    let mut c = db.admin();
    c.batch_execute(&format!("GRANT pg_monitor TO {monitor}; SELECT idem_grant('{operator}', 'operator')")).unwrap();
    // What only some may see of the server is found for all who may ask.
    for role in [monitor, operator] {
        let found = the(health(&mut db.connect_as(&role)), "warning", NOT_PRELOADED);
        assert!(found.remedy.starts_with("ALTER SYSTEM SET shared_preload_libraries"), "{}", found.remedy);
    }
    let refused = db.connect_as(&other).query("SELECT * FROM idem_health()", &[]).unwrap_err();
    assert_eq!(refused.code().map(|c| c.code()), Some("42501"));
}
