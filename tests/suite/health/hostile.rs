//! A schema's owner against whoever asks. CASES 48: what he puts in the place of our objects is never run.

use super::*;
use harness::{sqlstate, wait_until, Background, Calls};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;

/// Every function that reports, and the view.
const REPORTS: &[&str] = &[
    "SELECT count(*) FROM idem_health()",
    "SELECT count(*) FROM idem_count_open_claims()",
    "SELECT count(*) FROM idem_metrics",
];

/// Everything that a report uses, under its name and telling who runs it; but for what the caller himself names.
fn plant(volatility: &str) -> String {
    let trap = "public.trap()";
    let tables = ["idempotency_keys", "idempotency_endpoints", "idem_stats", "idem_stuck", "idem_endpoint_summary"]
        .map(|name| {
            format!("CREATE VIEW public.{name} AS SELECT {trap} AS endpoint, {trap} AS status, now() AS open_since;")
        });
    let functions = [
        "idem_is_preloaded()",
        "idem_counters()",
        "_idem_open_claims(boolean)",
        "_idem_sweep_lag(boolean)",
        "_idem_relations()",
        "_idem_tables_problem()",
        "_idem_registry(boolean)",
        "_idem_literal(text)",
    ]
    .map(|f| format!("CREATE FUNCTION public.{f} RETURNS text LANGUAGE sql {volatility} AS 'SELECT {trap}';"));
    format!(
        "CREATE FUNCTION {trap} RETURNS text LANGUAGE plpgsql {volatility} AS
           'BEGIN RAISE EXCEPTION ''TRAP as %'', current_user; END';
         {} {}",
        tables.concat(),
        functions.concat()
    )
}

fn owner_of_the_schema(db: &Database) -> String {
    let owner = db.role("owner");
    db.admin()
        .batch_execute(&format!(
            "SELECT idem_protect('POST /x', 'external'); SELECT idem_claim('t', 'POST /x', 'k', ''::bytea);
             ALTER SCHEMA public OWNER TO {owner}; GRANT CREATE ON DATABASE {} TO {owner}",
            db.name()
        ))
        .unwrap();
    owner
}

fn must_be_clean(report: &str, answer: Result<i64, postgres::Error>) {
    let Err(error) = answer else { return };
    assert!(!error.to_string().contains("TRAP"), "{report}: {error:?}");
    let state = sqlstate(&error);
    assert!(["55000", "55P03", "3F000", "42P01", "42883", "42703"].contains(&state), "{report}: {error:?}");
}

fn ask(c: &mut Client, report: &str) -> Result<i64, postgres::Error> {
    c.query_one(report, &[]).map(|row| row.get(0))
}

#[test]
fn a_report_that_waits_for_a_lock_does_not_run_what_is_put_in_its_place() {
    for volatility in ["VOLATILE", "IMMUTABLE"] {
        for report in &REPORTS[1..] {
            for attack in ["ALTER SCHEMA public RENAME TO elsewhere", "DROP SCHEMA public CASCADE"] {
                attack_a_waiting(report, attack, volatility);
            }
        }
    }
}

fn attack_a_waiting(report: &'static str, attack: &str, volatility: &str) {
    let db = Cluster::shared().database();
    let owner = owner_of_the_schema(&db);
    // He may lock what he will drop, as the superuser that this session really is may.
    let mut attacker = db.admin();
    attacker.batch_execute("BEGIN; LOCK TABLE idempotency_keys, idempotency_endpoints").unwrap();
    let asking = Background::run(db.admin(), move |c| ask(c, report));
    asking.until_waiting_for("Extension", &mut db.admin());
    // Who drops a view that is being read waits for the reader, and the reader for him: one of the two gives up.
    let script = format!(
        "SET LOCAL lock_timeout = '1s'; SET LOCAL client_min_messages = warning; SET LOCAL ROLE {owner}; {attack};
         CREATE SCHEMA public; {} COMMIT",
        plant(volatility)
    );
    if attacker.batch_execute(&script).is_err() {
        attacker.batch_execute("ROLLBACK").unwrap();
    }
    must_be_clean(report, asking.join().0);
}

#[test]
fn a_schema_that_is_renamed_and_remade_all_the_time_is_reported_on_or_not_found() {
    let db = Cluster::shared().database();
    let owner = owner_of_the_schema(&db);
    let stop = Arc::new(AtomicBool::new(false));
    let script = plant("IMMUTABLE");
    let renaming = Background::run(db.connect_as(&owner), {
        let stop = stop.clone();
        move |c| {
            let mut rounds = 0;
            c.batch_execute("SET client_min_messages = warning").unwrap();
            while !stop.load(Relaxed) {
                c.batch_execute(&format!(
                    "BEGIN; ALTER SCHEMA public RENAME TO elsewhere; CREATE SCHEMA public; {script} COMMIT"
                ))
                .unwrap();
                c.batch_execute("BEGIN; DROP SCHEMA public CASCADE; ALTER SCHEMA elsewhere RENAME TO public; COMMIT")
                    .unwrap();
                rounds += 1;
            }
            rounds
        }
    });
    let mut asking: Vec<_> = ["public", "elsewhere, public"]
        .iter()
        .map(|path| {
            let mut c = db.admin();
            c.batch_execute(&format!("SET search_path = {path}")).unwrap();
            c
        })
        .collect();
    let mut answers = 0;
    let (mut rounds, mut errors) = (0, 0);
    // Until each report was answered often enough, between and during the attacks.
    wait_until("answers", || {
        for c in &mut asking {
            for report in REPORTS {
                let answer = ask(c, report);
                match &answer {
                    Ok(_) => answers += 1,
                    Err(_) => errors += 1,
                }
                must_be_clean(report, answer);
            }
        }
        rounds += 1;
        rounds >= 60 && answers >= 60
    });
    stop.store(true, Relaxed);
    let attacks = renaming.join().0;
    assert!(attacks > 10, "{attacks} attacks, {errors} errors");
    let mut c = db.admin();
    assert_eq!(ask(&mut c, "SELECT open FROM idem_count_open_claims() WHERE endpoint = 'POST /x'").unwrap(), 1);
}

#[test]
fn a_lock_on_a_table_is_reported_at_once_with_who_holds_it() {
    let db = Cluster::shared().database();
    let mut c = db.admin();
    let mut locker = db.admin();
    let pid: i32 = locker.value("SELECT pg_backend_pid()");
    locker.batch_execute("BEGIN; LOCK TABLE idempotency_keys").unwrap();
    let found = the(
        about_tables(&mut c),
        "warning",
        &format!("Process {pid} holds a lock on table \"public.idempotency_keys\""),
    );
    // Metrics wait, and then fail: a gauge that is missing or old would be no alarm.
    let refused = ask(&mut c, "SELECT count(*) FROM idem_metrics").unwrap_err();
    assert_eq!(sqlstate(&refused), "55P03", "{refused:?}");
    mend(&db, &found.remedy);
    assert!(locker.execute("SELECT 1", &[]).is_err(), "the remedy ends the session that holds the lock");
    wait_until("the lock to be gone", || about_tables(&mut c).is_empty());
}

#[test]
fn code_of_the_tables_owner_runs_with_his_rights_only() {
    let db = Cluster::shared().database();
    let other = db.role("other");
    let mut c = db.admin();
    c.batch_execute(&format!(
        "SELECT idem_protect('POST /x', 'external'); SELECT idem_claim('t', 'POST /x', 'k', ''::bytea);
         CREATE SCHEMA other AUTHORIZATION {other}; GRANT USAGE ON SCHEMA public TO {other};
         CREATE TABLE other.seen (who text); ALTER TABLE other.seen OWNER TO {other};
         ALTER TABLE idempotency_keys OWNER TO {other}; ALTER TABLE idempotency_endpoints OWNER TO {other};
         CREATE FUNCTION other.tell(text) RETURNS text IMMUTABLE LANGUAGE plpgsql AS
           'BEGIN IF current_user <> ''{other}'' THEN RAISE EXCEPTION ''TRAP as %'', current_user; END IF; RETURN $1; END';
         ALTER FUNCTION other.tell(text) OWNER TO {other};
         CREATE INDEX ON idempotency_keys (other.tell(endpoint))"
    ))
    .unwrap();
    for report in REPORTS {
        assert!(ask(&mut c, report).is_ok(), "{report}");
    }
    let role: String = c.value("SELECT current_user::text");
    assert_eq!(role, "postgres");
}
