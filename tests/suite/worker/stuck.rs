//! Stuck claims: logged, counted, and found without reading the finished rows.

use super::*;

/// Makes an open claim look as old as that.
fn open_for(c: &mut Client, tenant: &str, endpoint: &str, key: &str, age: &str) {
    let claim = c.claim(tenant, endpoint, key, b"SECRET request").unwrap();
    assert_eq!(claim.outcome, "execute");
    let sql = "UPDATE idempotency_keys SET open_since = now() - $1::text::interval
                WHERE tenant_id = $2 AND endpoint = $3 AND key = $4";
    assert_eq!(c.execute(sql, &[&age, &tenant, &endpoint, &key]).unwrap(), 1);
}

#[test]
fn stuck_claims_are_logged_with_what_to_do_and_nothing_secret() {
    let cluster = cluster(&["idempotency_enforcer.sweep_interval = 0"]);
    let db = cluster.lenient_database();
    let mut c = db.admin();
    c.batch_execute(
        "SELECT idem_protect('POST /slow', 'external', stuck_after => '1 hour');
         SELECT idem_protect('POST /quick', 'external', stuck_after => '1 second')",
    )
    .unwrap();
    open_for(&mut c, "t\nFATAL:  forged", "POST /x\r\n\u{1b}[31m", "say \"hi\" \\", "2 hours");
    open_for(&mut c, "t", "POST /slow", "slow and stuck", "90 minutes");
    open_for(&mut c, "t", "POST /slow", "slow", "59 minutes");
    open_for(&mut c, "t", "POST /unregistered", "stuck", "61 seconds");
    open_for(&mut c, "t", "POST /unregistered", "young", "0 seconds");
    open_for(&mut c, "t", "POST /quick", "quick", "3 seconds");
    c.claim("t", "POST /done", "done", b"SECRET request").unwrap();
    c.complete("t", "POST /done", "done", 200, b"SECRET response").unwrap();
    assert_eq!(c.value::<i64>("SELECT count(*) FROM idem_stuck"), 4);

    cluster.reload(&["idempotency_enforcer.sweep_interval = 1h", "idempotency_enforcer.stuck_log_limit = 3"]);
    wait_until("the round", || rounds(&mut c) == 1);
    let log = lines(&cluster);
    let warnings: Vec<&String> = log.iter().filter(|line| line.contains("WARNING:")).collect();
    assert_eq!(warnings.len(), 4, "{log:#?}");
    assert!(
        warnings[0].contains(
            r#"claim of key "say \"hi\" \\" on endpoint "POST /x\r\n\u{1b}[31m" of tenant "t\nFATAL:  forged" is open for 02:00:0"#
        ) && warnings[0].ends_with("at attempt 1"),
        "{}",
        warnings[0]
    );
    assert!(warnings[1].contains("slow and stuck") && warnings[2].contains("POST /unregistered"), "oldest first");
    let total = format!("4 stuck claims in database {:?}, 3 of them shown", db.name());
    assert!(warnings[3].contains(&total), "{}", warnings[3]);
    let hints: Vec<&String> = log.iter().filter(|line| line.contains("HINT:")).collect();
    assert_eq!(hints.len(), 4);
    assert!(hints[0].contains("idem_complete, idem_fail or idem_release with attempt => 1"), "{}", hints[0]);
    assert!(hints[3].contains("idem_stuck"), "{}", hints[3]);
    assert!(!cluster.log().contains("SECRET") && !cluster.log().contains("\nFATAL:  forged"));
    assert_eq!(c.value::<i64>("SELECT sum(stuck_seen)::bigint FROM idem_stats"), 4);
    assert_eq!(c.value::<i64>("SELECT stuck_seen FROM idem_stats WHERE endpoint = 'POST /slow'"), 1);

    cluster.reload(&["idempotency_enforcer.stuck_log_limit = 0", "idempotency_enforcer.sweep_interval = 1"]);
    wait_until("another round", || rounds(&mut c) >= 2);
    assert!(!lines_with(&cluster, "4 stuck claims in database")[1..].is_empty());
    assert_eq!(lines_with(&cluster, "WARNING:  idempotency_enforcer: claim of key").len(), 3, "the limit is 0 now");
}

#[test]
fn neither_the_view_nor_the_worker_reads_the_finished_rows() {
    let cluster = cluster(&["idempotency_enforcer.sweep_interval = 0", "autovacuum = off"]);
    let db = cluster.lenient_database();
    let mut c = db.admin();
    c.batch_execute(
        "INSERT INTO idempotency_keys
                (tenant_id, endpoint, key, request_hash, status, response_code, completed_at, expires_at)
         SELECT 't', 'POST /x', 'k' || i, sha256('{}'), 'succeeded', 201, now(), now() + interval '1 day'
           FROM generate_series(1, 200000) i",
    )
    .unwrap();
    open_for(&mut c, "t", "POST /x", "open", "2 minutes");
    c.batch_execute("ANALYZE").unwrap();
    let rows = c.query("EXPLAIN SELECT * FROM idem_stuck", &[]).unwrap();
    let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    assert!(plan.contains("idempotency_keys_open_since_idx"), "{plan}");
    assert!(!plan.contains("Seq Scan on idempotency_keys"), "{plan}");

    let scans = "SELECT seq_scan + seq_tup_read FROM pg_stat_user_tables WHERE relname = 'idempotency_keys'";
    c.batch_execute("SELECT pg_stat_reset()").unwrap();
    cluster.reload(&["idempotency_enforcer.sweep_interval = 1"]);
    wait_until("the round", || rounds(&mut c) >= 2);
    wait_until("its statistics", || {
        c.value("SELECT idx_scan >= 2 FROM pg_stat_user_indexes WHERE indexrelname = 'idempotency_keys_open_since_idx'")
    });
    assert_eq!(c.value::<i64>(scans), 0, "sequential scans by the worker");
    assert!(
        c.value::<i64>("SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'idempotency_keys_pkey'")
            < 100
    );
}
