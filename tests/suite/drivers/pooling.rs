//! Transaction pooling: nothing depends on the session.

use super::{check_client, node, python};
use crate::security::{application, sqlstate};
use harness::{free_port, wait_for, Calls, Cluster, Database};
use postgres::types::{ToSql, Type};
use postgres::{Client, NoTls};
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use tempfile::TempDir;

/// PgBouncer in front of a database, with transaction pooling and DISCARD ALL after each transaction.
struct Pooler {
    process: Child,
    port: u16,
    role: String,
    database: String,
    _directory: TempDir,
}

impl Pooler {
    fn start(db: &Database, role: &str, pool_size: u32) -> Pooler {
        let directory = tempfile::tempdir().unwrap();
        let installation = db.cluster().installation();
        let (config, users) = (directory.path().join("pgbouncer.ini"), directory.path().join("users"));
        let port = free_port();
        std::fs::write(&users, format!("\"{role}\" \"\"\n")).unwrap();
        let settings = format!(
            "[databases]\n{database} = host=127.0.0.1 port={server} dbname={database}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = trust\nauth_file = {users}\nadmin_users = {role}\n\
             pool_mode = transaction\ndefault_pool_size = {pool_size}\n\
             server_reset_query = DISCARD ALL\nserver_reset_query_always = 1\n",
            database = db.name(),
            server = db.cluster().port(),
            users = users.display(),
        );
        std::fs::write(&config, settings).unwrap();
        for path in [directory.path(), &config, &users] {
            installation.hand_over(path);
        }
        let mut command = installation.as_server_user("pgbouncer");
        let command = command.arg("-q").arg(&config).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}: install pgbouncer"));
        let pooler = Pooler { process, port, role: role.into(), database: db.name().into(), _directory: directory };
        wait_for("PgBouncer to take connections: is it installed?", || pooler.try_connect(&pooler.database).ok());
        pooler
    }

    fn try_connect(&self, database: &str) -> Result<Client, postgres::Error> {
        let mut config = postgres::Config::new();
        config.host("127.0.0.1").port(self.port).dbname(database).user(&self.role).connect(NoTls)
    }

    fn connect(&self) -> Client {
        self.try_connect(&self.database).unwrap()
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        if let Ok(mut console) = self.try_connect("pgbouncer") {
            let _ = console.batch_execute("SHUTDOWN");
        } else {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
    }
}

/// A call outside of a transaction, as an unnamed statement: another backend each time, for all that the client knows.
fn autocommit<T>(c: &mut Client, sql: &str, key: &str, column: &str) -> Result<T, postgres::Error>
where
    T: for<'a> postgres::types::FromSql<'a>,
{
    let parameters: [(&(dyn ToSql + Sync), Type); 1] = [(&key, Type::TEXT)];
    c.query_typed(sql, &parameters).map(|rows| rows[0].get(column))
}

const CLAIM: &str =
    "SELECT outcome, response_body, pg_backend_pid() AS pid FROM idem_claim('t', 'POST /mail', $1, 'body'::text)";
const COMPLETE: &str = "SELECT pg_backend_pid() AS pid, idem_complete('t', 'POST /mail', $1, 200, 'sent'::text)";

/// Advisory locks of any kind that are held in the database.
const LOCKS: &str = "SELECT count(*) FROM pg_locks JOIN pg_database d ON d.oid = database
                      WHERE locktype = 'advisory' AND datname = current_database()";

/// Runs a client program behind the pooler, with the setting that docs/drivers.md names for its driver.
fn check_client_behind_pooler(mut command: Command, program: &str) {
    let db = Cluster::shared().lenient_database();
    let role = application(&db);
    let pooler = Pooler::start(&db, &role, 2);
    command.env("BEHIND_POOLER", "1");
    check_client(command, program, &db, &role, pooler.port);
    assert_eq!(db.admin().value::<i64>(LOCKS), 0);
}

// CASES 68
#[test]
fn python_psycopg_works_behind_a_pooler_without_prepared_statements() {
    check_client_behind_pooler(python(), "python/client.py");
}

// CASES 68
#[test]
fn node_pg_works_behind_a_pooler_with_unnamed_statements() {
    check_client_behind_pooler(node(), "node/client.js");
}

#[test]
fn many_clients_over_few_backends_execute_each_key_once() {
    const CLIENTS: usize = 8;
    const KEYS: usize = 25;
    let db = Cluster::shared().database();
    let role = application(&db);
    db.admin()
        .batch_execute(
            "SELECT idem_protect('POST /pay'); CREATE TABLE ledger (key text); GRANT ALL ON ledger TO PUBLIC",
        )
        .unwrap();
    let pooler = Pooler::start(&db, &role, 3);
    let barrier = Barrier::new(CLIENTS);
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (pooler, barrier) = (&pooler, &barrier);
            scope.spawn(move || {
                let mut c = pooler.connect();
                barrier.wait();
                for key in 0..KEYS {
                    let key = format!("k{key}");
                    loop {
                        let mut tx = c.transaction().unwrap();
                        let arrival = tx.claim("t", "POST /pay", &key, b"body").unwrap();
                        match arrival.outcome.as_str() {
                            "execute" => {
                                tx.execute("INSERT INTO ledger VALUES ($1)", &[&key]).unwrap();
                                if client % 4 == 0 {
                                    tx.rollback().unwrap(); // a failure: somebody else must be able to execute
                                    break;
                                }
                                tx.complete("t", "POST /pay", &key, 201, key.as_bytes()).unwrap();
                                tx.commit().unwrap();
                            }
                            "replay" => {
                                assert_eq!(arrival.response_body.as_deref(), Some(key.as_bytes()));
                                break;
                            }
                            other => assert_eq!(other, "in_progress"),
                        }
                    }
                }
            });
        }
    });
    let mut admin = db.admin();
    assert_eq!(admin.value::<i64>("SELECT count(*) FROM ledger"), KEYS as i64);
    assert_eq!(admin.value::<i64>("SELECT count(DISTINCT key) FROM ledger"), KEYS as i64);
    assert_eq!(admin.value::<i64>("SELECT count(*) FROM idem_keys WHERE status = 'succeeded'"), KEYS as i64);
    assert_eq!(admin.value::<i64>("SELECT count(*) FROM idem_keys"), KEYS as i64);
    assert_eq!(admin.value::<i64>(LOCKS), 0);
}

#[test]
fn an_external_claim_is_completed_on_another_backend() {
    let db = Cluster::shared().database();
    let role = application(&db);
    db.admin().execute("SELECT idem_protect('POST /mail', 'external')", &[]).unwrap();
    let pooler = Pooler::start(&db, &role, 2);
    let (mut c, mut other) = (pooler.connect(), pooler.connect());
    let claimed_on: i32 = autocommit(&mut c, CLAIM, "k", "pid").unwrap();
    assert_eq!(db.admin().value::<i64>(LOCKS), 0, "nothing stays behind on the backend");
    // Both backends are taken, then the one that did not claim is given back: the completion runs there.
    let (mut first, mut second) = (pooler.connect(), pooler.connect());
    let mut taken = [first.transaction().unwrap(), second.transaction().unwrap()];
    let backends = taken.each_mut().map(|tx| tx.value::<i32>("SELECT pg_backend_pid()"));
    let [first, second] = taken;
    let (kept, given_back) = if backends[0] == claimed_on { (first, second) } else { (second, first) };
    given_back.rollback().unwrap();
    let completed_on: i32 = autocommit(&mut c, COMPLETE, "k", "pid").unwrap();
    assert!(backends.contains(&claimed_on) && backends.contains(&completed_on) && completed_on != claimed_on);
    kept.rollback().unwrap();
    for _ in 0..4 {
        assert_eq!(autocommit::<String>(&mut c, CLAIM, "k", "outcome").unwrap(), "replay");
        assert_eq!(autocommit::<Vec<u8>>(&mut other, CLAIM, "k", "response_body").unwrap(), b"sent");
    }
    assert_eq!(autocommit::<String>(&mut c, CLAIM, "k 2", "outcome").unwrap(), "execute");
    assert_eq!(autocommit::<String>(&mut other, CLAIM, "k 2", "outcome").unwrap(), "in_progress");
}

#[test]
fn the_guard_refuses_and_the_next_client_of_the_backend_is_unaffected() {
    let db = Cluster::shared().database();
    let role = application(&db);
    db.admin().execute("SELECT idem_protect('POST /mail')", &[]).unwrap();
    let pooler = Pooler::start(&db, &role, 1);
    let (mut c, mut other) = (pooler.connect(), pooler.connect());
    let backend: i32 = c.transaction().unwrap().value("SELECT pg_backend_pid()");
    assert_eq!(sqlstate(autocommit::<String>(&mut c, CLAIM, "k", "outcome")), "ID004");
    let mut tx = other.transaction().unwrap();
    assert_eq!(tx.value::<i32>("SELECT pg_backend_pid()"), backend);
    assert_eq!(tx.claim("t", "POST /mail", "k", b"body").unwrap().outcome, "execute");
    tx.complete("t", "POST /mail", "k", 200, b"sent").unwrap();
    tx.commit().unwrap();
    assert_eq!(autocommit::<String>(&mut c, CLAIM, "k", "outcome").unwrap(), "replay");
}

#[test]
fn a_client_that_goes_away_leaves_no_claim_and_no_lock() {
    let db = Cluster::shared().lenient_database();
    let role = application(&db);
    let pooler = Pooler::start(&db, &role, 2);
    let mut gone = pooler.connect();
    gone.batch_execute("BEGIN; SELECT idem_claim('t', 'POST /mail', 'k', 'body'::text)").unwrap();
    let mut c = pooler.connect();
    assert_eq!(autocommit::<String>(&mut c, CLAIM, "k", "outcome").unwrap(), "in_progress");
    drop(gone);
    let executed = wait_for("the pooler to notice", || {
        Some(autocommit::<String>(&mut c, CLAIM, "k", "outcome").unwrap()).filter(|o| o != "in_progress")
    });
    assert_eq!(executed, "execute");
    assert_eq!(db.admin().value::<i64>(LOCKS), 0);
}
