//! What is wrong in a database is logged once, and keeps neither the rest of the work nor other rows.

use super::*;

/// A table of the application that refers to the key.
fn refer_to(c: &mut Client, key: &str) {
    c.batch_execute(&format!(
        "CREATE TABLE IF NOT EXISTS payments (
           tenant_id text COLLATE \"C\", endpoint text COLLATE \"C\", key text COLLATE \"C\",
           CONSTRAINT payments_key FOREIGN KEY (tenant_id, endpoint, key) REFERENCES idempotency_keys);
         INSERT INTO payments SELECT tenant_id, endpoint, key FROM idempotency_keys WHERE key = '{key}'"
    ))
    .expect("the application's table");
}

fn keys_left(c: &mut Client) -> String {
    c.value("SELECT coalesce(string_agg(key, ' ' ORDER BY expires_at, key), '') FROM idempotency_keys")
}

/// Rounds begin once everything is in place.
fn begin_rounds(cluster: &Cluster) {
    cluster.reload(&["idempotency_enforcer.sweep_interval = 1"]);
}

const NO_ROUNDS: &[&str] = &["idempotency_enforcer.sweep_interval = 0"];

#[test]
fn a_foreign_key_keeps_its_own_rows_only_and_is_logged_once() {
    let cluster = cluster(NO_ROUNDS);
    let (db, other) = (cluster.database(), cluster.database());
    let (mut c, mut o) = (db.admin(), other.admin());
    for c in [&mut c, &mut o] {
        add_expired(c, "POST /x", 100);
    }
    // Two that expired at the same moment as others, and the last of all.
    c.batch_execute(
        "UPDATE idempotency_keys SET expires_at = now() - interval '1 day' WHERE key IN ('k1', 'k2', 'k3', 'k4')",
    )
    .unwrap();
    for key in ["k2", "k3", "k100"] {
        refer_to(&mut c, key);
    }
    begin_rounds(&cluster);
    wait_until("the sweep", || rows_left(&mut c) == 3 && rows_left(&mut o) == 0);
    assert_eq!(keys_left(&mut c), "k2 k3 k100");
    wait_until("the line", || !lines_with(&cluster, "violates foreign key constraint").is_empty());
    for _ in 0..3 {
        wait_for_a_round(&mut c);
    }
    let said = lines_with(&cluster, "payments_key");
    assert_eq!(said.len(), 1, "{said:#?}");
    for part in ["LOG:", db.name(), "23503", "Drop the foreign key", "idempotency_keys", "payments"] {
        assert!(said[0].contains(part), "{part}: {}", said[0]);
    }
    assert!(lines(&cluster).iter().all(|line| line.contains("LOG:")), "{:#?}", lines(&cluster));

    // Cured, and the same again.
    c.batch_execute("DROP TABLE payments").unwrap();
    wait_until("the sweep", || rows_left(&mut c) == 0);
    wait_for_a_round(&mut c);
    add_expired(&mut c, "POST /y", 2);
    c.batch_execute("UPDATE idempotency_keys SET expires_at = now() + interval '1 h'").unwrap();
    refer_to(&mut c, "k1");
    c.batch_execute("UPDATE idempotency_keys SET expires_at = now() - interval '1 h'").unwrap();
    wait_until("the second line", || lines_with(&cluster, "payments_key").len() == 2);
    wait_until("the sweep", || keys_left(&mut c) == "k1");
    wait_for_a_round(&mut c);
    assert_eq!(lines_with(&cluster, "payments_key").len(), 2);
}

/// A batch that fails is work for nothing, so there is an end to it, and the rest of the round is done.
#[test]
fn keys_that_are_all_referred_to_cost_a_round_little() {
    let cluster = cluster(NO_ROUNDS);
    let db = cluster.database();
    let mut c = db.admin();
    add_expired(&mut c, "POST /x", 3_000);
    refer_to(&mut c, "k1");
    c.batch_execute("INSERT INTO payments SELECT tenant_id, endpoint, key FROM idempotency_keys WHERE key <> 'k1'")
        .unwrap();
    begin_rounds(&cluster);
    wait_for_a_round(&mut c);
    let rolled_back = "SELECT xact_rollback FROM pg_stat_database WHERE datname = current_database()";
    let per_round = c.value::<i64>(rolled_back) / rounds(&mut c);
    assert!((1..=101).contains(&per_round), "{per_round} failures a round");
    assert_eq!((rows_left(&mut c), lines_with(&cluster, "payments_key").len()), (3_000, 1));
}

#[test]
fn a_trouble_that_changes_is_logged_anew_and_numbers_are_no_change() {
    let cluster = cluster(NO_ROUNDS);
    let db = cluster.database();
    let mut c = db.admin();
    let raise = |c: &mut Client, what: &str| {
        c.batch_execute(&format!(
            "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION E'{what}\\nLINE 2 in process %', pg_backend_pid(); END $$"
        ))
        .unwrap();
    };
    raise(&mut c, "never");
    c.batch_execute(
        "CREATE TRIGGER refuse BEFORE DELETE ON idempotency_keys FOR EACH ROW
           WHEN (old.key = 'k1') EXECUTE FUNCTION refuse()",
    )
    .unwrap();
    add_expired(&mut c, "POST /x", 3);
    begin_rounds(&cluster);
    wait_until("the sweep", || keys_left(&mut c) == "k1");
    wait_for_a_round(&mut c);
    wait_for_a_round(&mut c);
    assert_eq!(lines_with(&cluster, r"never\nLINE 2").len(), 1, "{:?}", lines(&cluster));
    raise(&mut c, "not today");
    wait_until("the line", || lines_with(&cluster, "not today").len() == 1);
    wait_for_a_round(&mut c);
    assert_eq!(lines_with(&cluster, "LINE 2").len(), 2, "{:?}", lines(&cluster));
    assert!(!cluster.log().contains("\nLINE 2"));

    // A launcher that has begun anew cannot know.
    let launcher = pids(&mut c, "launcher")[0];
    c.execute("SELECT pg_terminate_backend($1)", &[&launcher]).unwrap();
    wait_for_another_launcher(&cluster, launcher);
    wait_until("the line", || lines_with(&cluster, "not today").len() == 2);
    c.batch_execute("DROP TRIGGER refuse ON idempotency_keys").unwrap();
    wait_until("the sweep", || rows_left(&mut c) == 0);
}

#[test]
fn tables_that_are_missing_are_logged_once() {
    let cluster = cluster(NO_ROUNDS);
    let db = cluster.database();
    let mut c = db.admin();
    add_expired(&mut c, "POST /x", 3);
    c.batch_execute("ALTER TABLE idempotency_keys RENAME TO elsewhere").unwrap();
    begin_rounds(&cluster);
    wait_until("the line", || {
        !lines_with(&cluster, "a table of extension idempotency_enforcer is not there").is_empty()
    });
    wait_for_a_round(&mut c);
    wait_for_a_round(&mut c);
    let said = lines(&cluster);
    assert!(said.len() == 1 && said[0].contains("55000") && said[0].contains(db.name()), "{said:?}");
    c.batch_execute("ALTER TABLE elsewhere RENAME TO idempotency_keys").unwrap();
    wait_until("the sweep", || rows_left(&mut c) == 0);
    c.batch_execute("ALTER TABLE idempotency_keys RENAME TO elsewhere").unwrap();
    wait_until("the line", || {
        lines_with(&cluster, "a table of extension idempotency_enforcer is not there").len() == 2
    });
}

#[test]
fn a_report_that_fails_keeps_neither_the_sweep_nor_the_round() {
    let cluster = cluster(NO_ROUNDS);
    let db = cluster.database();
    let mut c = db.admin();
    c.batch_execute("SELECT idem_protect('POST /mail', 'external')").unwrap();
    assert_eq!(c.claim("t", "POST /mail", "open", b"SECRET").unwrap().outcome, "execute");
    // Whoever looks for stuck claims computes a moment that no timestamp can hold.
    c.batch_execute(
        "ALTER TABLE idempotency_endpoints DROP CONSTRAINT stuck_after_at_most_a_century;
         UPDATE idempotency_endpoints SET stuck_after = interval '170000000 years'",
    )
    .unwrap();
    add_expired(&mut c, "POST /x", 3);
    begin_rounds(&cluster);
    wait_until("the sweep", || keys_left(&mut c) == "open");
    wait_for_a_round(&mut c);
    wait_for_a_round(&mut c);
    let said = lines_with(&cluster, "stuck claims cannot be reported");
    assert!(said.len() == 1 && said[0].contains("22008") && said[0].contains(db.name()), "{:?}", lines(&cluster));
    assert!(!cluster.log().contains("SECRET"));
    assert!(lines(&cluster).iter().all(|line| line.contains("LOG:")), "{:#?}", lines(&cluster));
    c.batch_execute(
        "UPDATE idempotency_endpoints SET stuck_after = '1 s';
         UPDATE idempotency_keys SET open_since = now() - interval '1 h'",
    )
    .unwrap();
    wait_until("the report", || !lines_with(&cluster, "1 stuck claims in database").is_empty());
}

#[test]
fn the_structured_log_names_the_worker() {
    let cluster =
        cluster(&["logging_collector = on", "log_destination = 'csvlog'", "log_directory = '.'", "log_filename = 'l'"]);
    let db = cluster.database();
    let mut c = db.admin();
    add_expired(&mut c, "POST /x", 3);
    wait_until("the line", || {
        let log = std::fs::read_to_string(cluster.data().join("l.csv")).unwrap_or_default();
        log.lines().any(|line| {
            line.contains("swept 3 expired keys")
                && line.contains(r#","idempotency_enforcer worker","idempotency_enforcer worker","#)
        })
    });
}
