//! `idem_reconcile`: who gets which stuck claim, and what becomes of its old owner.

mod fairness;
mod fencing;
mod leases;

use harness::{Calls, Cluster, Database};
use postgres::{Client, Row};

const CHARGE: &str = "POST /charges";
const BODY: &[u8] = b"{}";

/// A database with this many claims on an external endpoint, `k1` the oldest, all of them stuck.
fn stuck_claims(cluster: &Cluster, claims: i32) -> Database<'_> {
    let db = cluster.database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /charges', 'external', stuck_after => '1 minute')").unwrap();
    for n in 1..=claims {
        assert_eq!(c.claim("t", CHARGE, &format!("k{n}"), BODY).unwrap().outcome, "execute");
    }
    age(&mut c, "1 day");
    db
}

/// Makes all open claims older.
fn age(c: &mut Client, by: &str) {
    let sql = "UPDATE idempotency_keys SET open_since = open_since - $1::text::interval WHERE open_since IS NOT NULL";
    c.execute(sql, &[&by]).unwrap();
}

/// As when the time of the leases has passed.
fn end_leases(c: &mut Client) {
    c.batch_execute("UPDATE idempotency_keys SET lease_until = clock_timestamp() WHERE lease_until IS NOT NULL")
        .unwrap();
}

/// `idem_reconcile` as a reconciler calls it: the keys and attempts that it was handed.
fn reconcile(c: &mut impl Calls, max_claims: i32) -> Result<Vec<(String, i32)>, postgres::Error> {
    let rows = c.rows("SELECT key, attempt FROM idem_reconcile($1)", &[&max_claims])?;
    Ok(rows.iter().map(|row: &Row| (row.get(0), row.get(1))).collect())
}

/// A call that finishes a claim or says how far it came, with an attempt or none.
fn finish(c: &mut impl Calls, call: &str, key: &str, attempt: Option<i32>) -> Result<(), postgres::Error> {
    let sql = match call {
        "complete" => "SELECT idem_complete('t', 'POST /charges', $1, 201, 'charged'::text, attempt => $2)",
        "fail" => "SELECT idem_fail('t', 'POST /charges', $1, 402, 'declined'::text, attempt => $2)",
        "release" => "SELECT idem_release('t', 'POST /charges', $1, $2)",
        _ => "SELECT idem_checkpoint('t', 'POST /charges', $1, 'called', NULL, $2)",
    };
    c.rows(sql, &[&key, &attempt]).map(drop)
}

#[test]
fn stuck_claims_are_handed_out_oldest_first_with_all_that_is_known_of_them() {
    let db = stuck_claims(Cluster::shared(), 5);
    let mut c = db.admin();
    c.batch_execute("SELECT idem_checkpoint('t', 'POST /charges', 'k2', 'called', '{\"order\": 7}')").unwrap();
    assert_eq!(reconcile(&mut c, 1).unwrap(), [("k1".to_string(), 2)]);
    let sql = "SELECT r.*, k.provider_key = r.provider_key AND k.open_since = r.open_since AS same
                 FROM idem_reconcile(2, '1 minute') r JOIN idempotency_keys k USING (tenant_id, endpoint, key)";
    let rows = c.query(sql, &[]).unwrap();
    assert_eq!(rows.len(), 2);
    let (second, third) = (&rows[0], &rows[1]);
    assert_eq!((second.get("tenant_id"), second.get("endpoint"), second.get("key")), ("t", CHARGE, "k2"));
    assert_eq!(second.get::<_, Option<String>>("recovery_point").as_deref(), Some("called"));
    assert_eq!(second.get::<_, serde_json::Value>("recovery_state"), serde_json::json!({"order": 7}));
    assert!(second.get::<_, bool>("same"), "provider_key and open_since");
    assert_eq!((third.get("key"), third.get::<_, Option<String>>("recovery_point")), ("k3", None));
    let leased = "SELECT count(*) FROM idempotency_keys
                   WHERE lease_until - clock_timestamp() BETWEEN '50 s' AND '1 min' AND attempt = 2";
    assert_eq!(c.value::<i64>(leased), 2);
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idem_stuck WHERE leased"), 3);
    assert_eq!(reconcile(&mut c, 100).unwrap(), [("k4".to_string(), 2), ("k5".to_string(), 2)]);
    assert_eq!(reconcile(&mut c, 100).unwrap(), []);
}

#[test]
fn only_claims_older_than_their_own_endpoints_stuck_after_are_handed_out() {
    let db = Cluster::shared().lenient_database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /slow', 'external', stuck_after => '1 hour'),
                idem_protect('POST /quick', 'external', stuck_after => '1 second')",
    )
    .unwrap();
    let handed_out = |c: &mut Client, only: Option<&str>| -> Vec<String> {
        let sql = "SELECT endpoint FROM idem_reconcile(only_endpoint => $1) ORDER BY endpoint";
        c.query(sql, &[&only]).unwrap().iter().map(|row| row.get(0)).collect()
    };
    for endpoint in ["POST /slow", "POST /quick", "POST /unregistered"] {
        c.claim("t", endpoint, "k", BODY).unwrap();
        c.claim("t", endpoint, "finished", BODY).unwrap();
        c.complete("t", endpoint, "finished", 200, b"").unwrap();
    }
    assert!(handed_out(&mut c, None).is_empty(), "none is stuck yet");
    age(&mut c, "59 seconds");
    assert_eq!(handed_out(&mut c, None), ["POST /quick"]);
    age(&mut c, "1 second");
    assert_eq!(handed_out(&mut c, None), ["POST /unregistered"]);
    age(&mut c, "58 minutes");
    end_leases(&mut c);
    assert_eq!(handed_out(&mut c, Some("POST /slow")), [""; 0]);
    assert_eq!(handed_out(&mut c, Some("POST /nowhere")), [""; 0]);
    assert_eq!(handed_out(&mut c, Some("POST /quick")), ["POST /quick"]);
    age(&mut c, "1 minute");
    assert_eq!(handed_out(&mut c, None), ["POST /slow", "POST /unregistered"]);
}

#[test]
fn numbers_of_claims_and_leases_that_cannot_be_right_are_refused() {
    let db = stuck_claims(Cluster::shared(), 1);
    let mut c = db.admin();
    for arguments in [
        "0",
        "-1",
        "NULL",
        "1, '0'",
        "1, '-1 second'",
        "1, NULL",
        "1, '25 hours'",
        "1, '1 month -30 days -1 second'",
        "1, '178000000 years'",
    ] {
        let error = c.batch_execute(&format!("SELECT idem_reconcile({arguments})")).expect_err(arguments);
        assert_eq!(harness::sqlstate(&error), "22023", "{arguments}: {error}");
        let error = error.as_db_error().unwrap();
        assert!(error.detail().is_some() && error.hint().is_some(), "{error:?}");
    }
    assert_eq!(crate::external::stored(&mut c, "k1")["attempt"], 1, "nothing was taken");
    c.batch_execute("SELECT idem_reconcile(2147483647, '1 day')").unwrap();
    assert_eq!(crate::external::stored(&mut c, "k1")["attempt"], 2);
}

/// However many rows are finished, only open claims are read, in a backend that planned when the table was empty too.
#[test]
fn only_the_index_of_open_claims_is_read() {
    let db = stuck_claims(Cluster::shared(), 0);
    let (mut early, mut late) = (db.admin(), db.admin());
    assert_eq!(reconcile(&mut early, 10).unwrap(), []);
    let mut c = db.admin();
    c.batch_execute(
        "INSERT INTO idempotency_keys (tenant_id, endpoint, key, request_hash, status, response_code, completed_at)
         SELECT 't', 'POST /charges', 'finished ' || n, sha256('{}'), 'succeeded', 200, now()
           FROM generate_series(1, 30000) n",
    )
    .unwrap();
    for n in 1..=20 {
        c.claim("t", CHARGE, &format!("k{n}"), BODY).unwrap();
    }
    age(&mut c, "1 day");
    for (client, analyzed) in [(&mut early, false), (&mut late, true)] {
        if analyzed {
            c.batch_execute("ANALYZE idempotency_keys").unwrap();
        }
        let mut tx = client.transaction().unwrap();
        assert_eq!(reconcile(&mut tx, 5).unwrap().len(), 5);
        let read: i64 = tx.value(
            "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'idempotency_keys'",
        );
        assert!(read <= 60, "{read} rows read");
        tx.rollback().unwrap();
    }
    let size: i64 = c.value("SELECT pg_relation_size('idempotency_keys_open_since_idx')");
    assert!(size <= 4 * 8192, "{size} bytes for 20 open claims");
}

#[test]
fn a_reconciler_may_take_claims_over_and_an_application_may_not() {
    let db = stuck_claims(Cluster::shared(), 2);
    let (application, reconciler, operator) = (db.role("app"), db.role("rec"), db.role("ops"));
    let mut c = db.admin();
    for (role, kind) in [(&application, "application"), (&reconciler, "reconciler"), (&operator, "operator")] {
        c.execute("SELECT idem_grant($1::text::name, $2)", &[role, &kind]).unwrap();
    }
    let refused = reconcile(&mut db.connect_as(&application), 1).unwrap_err();
    assert_eq!(harness::sqlstate(&refused), "42501");
    let mut r = db.connect_as(&reconciler);
    assert_eq!(reconcile(&mut r, 1).unwrap(), [("k1".to_string(), 2)]);
    finish(&mut r, "checkpoint", "k1", Some(2)).unwrap();
    finish(&mut r, "complete", "k1", Some(2)).unwrap();
    assert_eq!(r.claim("t", CHARGE, "k1", BODY).unwrap().outcome, "replay");
    assert!(r.query("SELECT 1 FROM idempotency_keys", &[]).is_err(), "no right on the tables");
    assert_eq!(reconcile(&mut db.connect_as(&operator), 1).unwrap(), [("k2".to_string(), 2)]);
}
