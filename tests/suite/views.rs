//! The views and the comments of every object.

use harness::{Calls, Cluster, Database};

const WIDTH: usize = 120;
const E: &str = "POST /v1/payments";
const TENANT: &str = "acct_1234";

/// Rows as they are met: each state, keys that are UUIDs, times of days.
fn typical_database() -> Database<'static> {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /v1/payments', 'external', retry_window => '30 hours'), idem_protect('POST /v1/transfers')",
    )
    .unwrap();
    let key = |i: u32| uuid::Uuid::from_u128(0x9bb5ae2d_2ba3_877c_bae9_a824fa65fb80 + u128::from(i)).to_string();
    for i in 0..5 {
        assert_eq!(c.claim(TENANT, E, &key(i), b"SECRET").unwrap().outcome, "execute");
    }
    let headers = r#"[["x", "SECRET"]]"#;
    for (i, finish) in [(0, "idem_complete"), (1, "idem_fail")] {
        let sql = format!("SELECT {finish}($1, $2, $3, 201, repeat('SECRET', 1000), '{headers}')");
        c.query(&sql, &[&TENANT, &E, &key(i)]).unwrap();
    }
    c.claim(TENANT, "POST /v1/refunds", &key(0), b"SECRET").unwrap();
    c.batch_execute(
        "UPDATE idempotency_keys SET created_at = created_at - interval '2 days 03:04:05';
         UPDATE idempotency_keys SET expires_at = now() - interval '03:04:05' WHERE status = 'failed'",
    )
    .unwrap();
    for (i, stuck) in [
        (2, "open_since = now() - interval '2 days 03:04:05', lease_until = now() + interval '1 min'"),
        (3, "open_since = now() - interval '61 s', recovery_point = 'charged'"),
        (4, "open_since = now() - interval '59 s', lease_until = now() - interval '1 min'"),
    ] {
        let sql = format!("UPDATE idempotency_keys SET {stuck} WHERE endpoint = $1 AND key = $2");
        c.execute(&sql, &[&E, &key(i)]).unwrap();
    }
    db
}

fn psql(db: &Database, sql: &str) -> String {
    let port = db.cluster().port().to_string();
    let mut psql = db.cluster().installation().client("psql");
    psql.args(["-X", "-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-d", db.name(), "-c", sql]);
    let output = psql.env("PGCLIENTENCODING", "UTF8").output().expect("psql");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

#[test]
fn typical_rows_fit_a_terminal() {
    let db = typical_database();
    let mut too_wide = String::new();
    for view in ["idem_keys", "idem_stuck", "idem_endpoint_summary"] {
        let output = psql(&db, &format!("SELECT * FROM {view}"));
        assert!(output.lines().count() > 4, "{view} has rows:\n{output}");
        let widest = output.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        if widest > WIDTH {
            too_wide += &format!("{view} takes {widest} columns:\n{output}");
        }
    }
    assert!(too_wide.is_empty(), "{too_wide}");
}

#[test]
fn idem_keys_shows_sizes_instead_of_hashes_bodies_and_headers() {
    let db = typical_database();
    let mut c = db.admin();
    let columns: Vec<(String, String)> = c
        .query(
            "SELECT attname::text, atttypid::regtype::text FROM pg_attribute
              WHERE attrelid IN (SELECT oid FROM pg_class WHERE relkind = 'v' AND relname LIKE 'idem\\_%') AND attnum > 0",
            &[],
        )
        .unwrap()
        .into_iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    for (name, kind) in &columns {
        assert!(kind != "bytea" && !name.contains("hash") && !name.contains("header"), "{name} {kind}");
    }
    let everything: String = c.value("SELECT string_agg(k::text, '') FROM idem_keys k");
    let hash: String = c.value("SELECT encode(sha256('SECRET'), 'hex')");
    assert!(!everything.contains("SECRET") && !everything.contains("534543524554") && !everything.contains(&hash));

    let row = "SELECT concat_ws('|', tenant_id, endpoint, status, code, body, age >= '2 days 03:04:05', ttl > '1 day')
                 FROM idem_keys WHERE endpoint = 'POST /v1/payments' AND ";
    let finished: String = c.value(&format!("{row} status = 'succeeded'"));
    assert_eq!(finished, "acct_1234|POST /v1/payments|succeeded|201|6000|t|t");
    let leased: String = c.value(
        "SELECT concat_ws('|', tenant_id, endpoint, attempt, provider_key IS NOT NULL, lease_until > now(), recovery_point)
           FROM idem_key_details WHERE lease_until > now()",
    );
    assert_eq!(leased, "acct_1234|POST /v1/payments|1|t|t");
    assert_eq!(
        c.value::<i64>("SELECT count(*) FROM idem_keys"),
        c.value::<i64>("SELECT count(*) FROM idempotency_keys")
    );
}

#[test]
fn idem_keys_tells_no_body_from_an_empty_one() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    for (key, body) in [("none", "NULL::text"), ("empty", "''::text")] {
        c.claim("t", E, key, b"").unwrap();
        c.query(&format!("SELECT idem_complete('t', '{E}', '{key}', 200, {body})"), &[]).unwrap();
    }
    assert_eq!(c.value::<Option<i32>>("SELECT body FROM idem_keys WHERE key = 'none'"), None);
    assert_eq!(c.value::<Option<i32>>("SELECT body FROM idem_keys WHERE key = 'empty'"), Some(0));
}

#[test]
fn idem_stuck_lists_open_claims_past_their_endpoints_time_oldest_first() {
    let db = typical_database();
    let mut c = db.admin();
    let stuck =
        "SELECT string_agg(concat_ws('|', right(key, 1), attempt, open_for, leased, reached), ' ') FROM idem_stuck";
    assert_eq!(c.value::<String>(stuck), "2|1|2 days 03:04:05|t 3|1|00:01:01|f|charged");
    // The endpoint's own time counts.
    c.batch_execute("SELECT idem_protect('POST /v1/payments', 'external', stuck_after => '5 minutes')").unwrap();
    assert_eq!(c.value::<String>("SELECT right(key, 1) FROM idem_stuck"), "2");
    // So does a minute where it is not registered.
    c.batch_execute(
        "UPDATE idempotency_keys SET open_since = now() - interval '61 s' WHERE endpoint = 'POST /v1/refunds'",
    )
    .unwrap();
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idem_stuck"), 2);
    // What is finished is not stuck.
    let (tenant, key): (String, String) = {
        let row = c.query_one("SELECT tenant_id, key FROM idem_stuck WHERE endpoint = $1", &[&E]).unwrap();
        (row.get(0), row.get(1))
    };
    c.complete(&tenant, E, &key, 200, b"").unwrap();
    assert_eq!(c.value::<String>("SELECT endpoint FROM idem_stuck"), "POST /v1/refunds");
}

#[test]
fn idem_endpoint_summary_counts_registered_and_unregistered_endpoints() {
    let db = typical_database();
    let mut c = db.admin();
    let summary = "SELECT string_agg(concat_ws('|', endpoint, effect, retry_window, ttl, open, succeeded, failed,
                                               expired, oldest), E'\\n') FROM idem_endpoint_summary";
    assert_eq!(
        c.value::<String>(summary).lines().collect::<Vec<_>>(),
        [
            "POST /v1/payments|external|30:00:00|60:00:00|3|1|1|1|2 days 03:04:05",
            "POST /v1/refunds|unregistered|24:00:00|1|0|0|0|2 days 03:04:05",
            "POST /v1/transfers|transaction|24:00:00|48:00:00|0|0|0|0",
        ]
    );
}

#[test]
fn every_object_of_the_extension_has_a_comment() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let uncommented = "
        WITH member AS (
          SELECT d.classid, d.objid FROM pg_depend d
            JOIN pg_extension x ON x.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
           WHERE x.extname = 'idempotency_enforcer' AND d.deptype = 'e'),
        relation AS (SELECT objid FROM member WHERE classid = 'pg_class'::regclass),
        object AS (
          SELECT classid, objid, 0 AS objsubid FROM member
          UNION SELECT 'pg_class'::regclass, indexrelid, 0 FROM pg_index WHERE indrelid IN (SELECT objid FROM relation)
          UNION SELECT 'pg_class'::regclass, attrelid, attnum FROM pg_attribute
                 WHERE attrelid IN (SELECT objid FROM relation) AND attnum > 0 AND NOT attisdropped
          UNION SELECT 'pg_extension'::regclass, oid, 0 FROM pg_extension WHERE extname = 'idempotency_enforcer')
        SELECT pg_describe_object(o.classid, o.objid, o.objsubid) FROM object o
         WHERE NOT EXISTS (SELECT FROM pg_description d
                            WHERE (d.classoid, d.objoid, d.objsubid) = (o.classid, o.objid, o.objsubid)
                              AND length(d.description) > 5)
           AND NOT (o.classid = 'pg_type'::regclass)
         ORDER BY 1";
    let names: Vec<String> = c.query(uncommented, &[]).unwrap().iter().map(|row| row.get(0)).collect();
    assert!(names.is_empty(), "without a comment:\n{}", names.join("\n"));
    assert!(c.value::<i64>("SELECT count(*) FROM pg_depend WHERE deptype = 'e'") > 15);
}
