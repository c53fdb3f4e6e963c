//! What operators may do to stored results, and the lines that it leaves in the log.

use harness::{Calls, Cluster, Database, Failure};
use postgres::Client;

const BODY: &[u8] = b"request-S3CR3T";
const ANSWER: &[u8] = b"answer-S3CR3T";

fn shop(cluster: &Cluster) -> Database<'_> {
    let db = cluster.database();
    db.admin().batch_execute("SELECT idem_protect('POST /pay'), idem_protect('POST /charges', 'external')").unwrap();
    db
}

fn paid(c: &mut Client, tenant: &str, endpoint: &str, key: &str) {
    let mut t = c.transaction().unwrap();
    assert_eq!(t.claim(tenant, endpoint, key, BODY).unwrap().outcome, "execute");
    let sql = "SELECT idem_complete($1, $2, $3, 201, $4::bytea, '[[\"x-secret\", \"S3CR3T\"]]', 'ref-S3CR3T')";
    t.rows(sql, &[&tenant, &endpoint, &key, &ANSWER]).unwrap();
    t.commit().unwrap();
}

fn forget(c: &mut Client, endpoint: &str, key: &str) -> Result<bool, postgres::Error> {
    c.query_one("SELECT idem_forget('t', $1, $2)", &[&endpoint, &key]).map(|row| row.get(0))
}

// CASES 70
#[test]
fn a_forgotten_result_is_executed_again_and_its_number_is_not_used_again() {
    let db = shop(Cluster::shared());
    let mut c = db.admin();
    paid(&mut c, "t", "POST /pay", "k");
    assert!(forget(&mut c, "POST /pay", "k").unwrap());
    let kept =
        "SELECT (status, attempt, response_code, response_body, response_headers, resource_ref, completed_at)::text
                  FROM idempotency_keys";
    assert_eq!(c.value::<String>(kept), "(released,1,,,,,)");
    assert!(!forget(&mut c, "POST /pay", "k").unwrap(), "there is no result any more");
    assert!(!forget(&mut c, "POST /pay", "never seen").unwrap());
    let mut t = c.transaction().unwrap();
    assert_eq!(t.claim("t", "POST /pay", "k", b"another").unwrap().attempt, Some(2));
    t.complete("t", "POST /pay", "k", 200, b"new").unwrap();
    t.commit().unwrap();
    assert_eq!(c.claim("t", "POST /pay", "k", b"another").unwrap().response_body, Some(b"new".to_vec()));
}

#[test]
fn an_open_claim_is_not_forgotten_nor_a_result_whose_effect_is_not_committed() {
    let db = shop(Cluster::shared());
    let mut c = db.admin();
    c.claim("t", "POST /charges", "k", BODY).unwrap();
    let refused = Failure::of(forget(&mut c, "POST /charges", "k"));
    assert_eq!(refused.sqlstate, "55006", "{refused:?}");
    let mut t = c.transaction().unwrap();
    t.claim("t", "POST /pay", "k", BODY).unwrap();
    t.complete("t", "POST /pay", "k", 201, ANSWER).unwrap();
    let refused = Failure::of(t.rows("SELECT idem_forget('t', 'POST /pay', 'k')", &[]).map(|_| ()));
    assert_eq!(refused.sqlstate, "ID004", "the effect would commit without its result: {refused:?}");
    drop(t);
    assert_eq!(
        c.claim("t", "POST /pay", "new", BODY).map(|_| ()).map_err(|e| harness::sqlstate(&e).to_owned()),
        Err("ID004".into())
    );
}

// CASES 69
#[test]
fn a_tenant_is_erased_and_stays_protected() {
    let db = shop(Cluster::shared());
    let mut c = db.admin();
    paid(&mut c, "t", "POST /pay", "k1");
    paid(&mut c, "t", "POST /pay", "k2");
    paid(&mut c, "t", "POST /charges", "k3");
    paid(&mut c, "other", "POST /pay", "k1");
    c.claim("t", "POST /charges", "open", BODY).unwrap();
    c.batch_execute("SELECT idem_checkpoint('t', 'POST /charges', 'open', 'p', '\"S3CR3T\"')").unwrap();
    let erase = |c: &mut Client, arguments: &str| c.value::<i64>(&format!("SELECT idem_erase({arguments})"));
    assert_eq!(erase(&mut c, "'t', 'POST /pay', 'k1'"), 1);
    assert_eq!(erase(&mut c, "'t', 'POST /pay'"), 1, "one was erased before");
    assert_eq!(erase(&mut c, "'t'"), 1, "an open claim is not erased");
    assert_eq!(erase(&mut c, "'t'"), 0);
    assert_eq!(erase(&mut c, "'nobody'"), 0);
    let left = c
        .query(
            "SELECT tenant_id, k::text FROM idempotency_keys k WHERE k::text LIKE '%S3CR3T%'
                        OR convert_from(coalesce(response_body, ''), 'UTF8') LIKE '%S3CR3T%' ORDER BY 1",
            &[],
        )
        .unwrap();
    let left: Vec<String> = left.into_iter().map(|row| row.get(0)).collect();
    assert_eq!(left, ["other", "t"], "the other tenant's, and the open claim's state");
    // A replay has the code alone; the protection is what it was.
    let replay = c.claim("t", "POST /pay", "k1", BODY).unwrap();
    assert_eq!((replay.outcome.as_str(), replay.response_code), ("replay", Some(201)));
    assert_eq!((replay.response_body, replay.response_headers, replay.resource_ref), (None, None, None));
    assert_eq!(c.claim("t", "POST /pay", "k1", b"another").unwrap().outcome, "key_reused");
    // The same status and code is the same result; anything else is another.
    assert!(!c
        .query_one("SELECT idem_complete('t', 'POST /pay', 'k1', 201, 'x'::bytea)", &[])
        .unwrap()
        .get::<_, bool>(0));
    for other in [
        "idem_complete('t', 'POST /pay', 'k1', 200, NULL::bytea)",
        "idem_fail('t', 'POST /pay', 'k1', 201, NULL::bytea)",
    ] {
        assert_eq!(Failure::of(c.execute(&format!("SELECT {other}"), &[])).sqlstate, "ID002");
    }
    assert!(c.value::<bool>("SELECT erased_at IS NOT NULL FROM idem_key_details WHERE key = 'k2'"));
    for bad in ["NULL", "'t', NULL, 'k1'"] {
        assert_eq!(Failure::of(c.execute(&format!("SELECT idem_erase({bad})"), &[])).sqlstate, "22023");
    }
}

// CASES 51
#[test]
fn nothing_of_bodies_headers_and_keys_is_in_the_statistics() {
    let db = shop(Cluster::shared());
    let mut c = db.admin();
    for n in 0..300 {
        paid(&mut c, "t", "POST /pay", &format!("S3CR3T-{}", n % 150 + n / 150 * 1000));
    }
    c.batch_execute("ANALYZE idempotency_keys").unwrap();
    let known = "SELECT array_agg(attname::text ORDER BY 1)::text[] FROM pg_stats WHERE tablename = 'idempotency_keys'";
    let known: Vec<String> = c.value(known);
    assert!(known.contains(&"endpoint".into()) && known.contains(&"expires_at".into()), "{known:?}");
    let shown = "SELECT count(*) FROM pg_statistic s WHERE s.starelid = 'idempotency_keys'::regclass
                    AND (s::text LIKE '%S3CR3T%' OR s::text LIKE '%' || encode('S3CR3T', 'hex') || '%')";
    assert_eq!(c.value::<i64>(shown), 0);
}

#[test]
fn whoever_changes_what_is_protected_leaves_a_line_in_the_log() {
    let cluster = Cluster::start(&[]);
    let db = shop(&cluster);
    let mut admin = db.admin();
    let (ops, app) = (db.role("ops"), db.role("app"));
    admin.batch_execute(&format!("SELECT idem_grant('{ops}', 'operator'), idem_grant('{app}')")).unwrap();
    let mut c = db.connect_as(&ops);
    let since = cluster.log().len();
    c.batch_execute("SELECT idem_protect('POST /new\nline'); SELECT idem_unprotect('POST /new\nline')").unwrap();
    paid(&mut c, "t", "POST /pay", "k");
    assert!(forget(&mut c, "POST /pay", "k").unwrap());
    paid(&mut c, "t", "POST /pay", "k2");
    // A statement with a body in it, whose other half is an operator's: the log line must not bring the statement along.
    c.batch_execute("SELECT idem_erase('t'), 'S3CR3T'").unwrap();
    c.claim("t", "POST /charges", "k", BODY).unwrap();
    c.batch_execute("SELECT idem_release('t', 'POST /charges', 'k')").unwrap();
    let log = cluster.log_since(since);
    for line in [
        r#"registered endpoint "POST /new\nline" as "transaction" with a ttl of 48:00:00"#,
        r#"removed the registration of endpoint "POST /new\nline""#,
        r#"forgot the result of key "k" on endpoint "POST /pay" of tenant "t""#,
        r#"erased what 2 rows of tenant "t" were answered"#,
        r#"released the claim of key "k" on endpoint "POST /charges" of tenant "t" at attempt 1"#,
    ] {
        let line = format!("LOG:  idempotency_enforcer: role {ops:?} {line}");
        assert!(log.contains(&line), "{line}\n{log}");
    }
    assert!(!log.contains("S3CR3T") && !log.contains("STATEMENT"), "{log}");
    // What an application does every day is no news.
    let since = cluster.log().len();
    let mut c = db.connect_as(&app);
    assert_eq!(c.claim("t", "POST /charges", "k", BODY).unwrap().attempt, Some(2));
    c.batch_execute("SELECT idem_release('t', 'POST /charges', 'k', attempt => 2)").unwrap();
    assert_eq!(cluster.log_since(since), "");
}
