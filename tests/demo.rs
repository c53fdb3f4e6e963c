//! The demonstration: a payments endpoint on a private PostgreSQL, and what becomes of its repeated requests.
//!
//! Shows the SQL as it is run and what came of it, checks each promise, and fails when one is broken. The server is
//! left running in the directory that the only argument names.

use harness::{wait_until, Cluster, Installation};
use postgres::{Client, NoTls, SimpleQueryMessage};
use std::error::Error;
use std::fs::{self, DirBuilder};
use std::io::IsTerminal;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Barrier;
use std::thread;
use std::time::UNIX_EPOCH;

const DATABASE: &str = "demo";
const ENDPOINT: &str = "POST /payments";

type Answer<T> = Result<T, Box<dyn Error + Send + Sync>>;

fn main() -> ExitCode {
    let Some(root) = std::env::args_os().nth(1) else {
        eprintln!("usage: demo DIRECTORY");
        return ExitCode::FAILURE;
    };
    match demonstrate(Path::new(&root)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\n{} {error}", paint("1;31", "✗"));
            ExitCode::FAILURE
        }
    }
}

fn demonstrate(root: &Path) -> Answer<()> {
    let cluster = cluster_at(root)?;
    let shop = Shop { cluster: &cluster };
    shop.open()?;
    shop.first_payment()?;
    shop.retry()?;
    shop.simultaneous_payments()?;
    shop.another_amount()?;
    shop.no_key()?;
    shop.failed_payment()?;
    shop.crash()?;
    println!("\n{}", paint("1", "All as promised. What is stored now:"));
    shop.session("psql", "postgres")?.run("SELECT endpoint, key, status, code, body FROM idem_keys ORDER BY key")?;
    println!("\nPlay on:  {}", psql(&cluster));
    println!("Stop it:  make stop");
    Ok(())
}

/// The demonstration's server, running the library that is installed now.
fn cluster_at(root: &Path) -> Answer<Cluster> {
    let installation = Installation::find();
    let server_user = installation.as_server_user("id").arg("-u").output()?.stdout;
    let server_user: u32 = String::from_utf8(server_user)?.trim().parse()?;
    if root.exists() && (fs::metadata(root)?.uid() != server_user || fs::symlink_metadata(root)?.is_symlink()) {
        return Err(format!("{} belongs to somebody else: remove it first", root.display()).into());
    }
    if !root.join("port").exists() {
        // What an interrupted run left, if anything.
        let _ = fs::remove_dir_all(root);
        fs::create_dir_all(root.parent().unwrap_or(root))?;
        DirBuilder::new().mode(0o700).create(root)?;
    }
    println!("Starting a private PostgreSQL {} in {}", installation.major(), root.display());
    if !root.ends_with(format!("target/demo/pg{}", installation.major())) {
        println!("(not in this folder: PostgreSQL's user cannot enter it, or its path is too long for a socket)");
    }
    // Durable, as in production.
    let cluster = Cluster::keep_at(
        root,
        &["shared_preload_libraries = 'idempotency_enforcer'", "fsync = on", "max_connections = 50"],
    );
    fs::write(root.join("bindir"), format!("{}\n", installation.bindir().display()))?;
    let library = Path::new(&installation.ask("--pkglibdir")).join("idempotency_enforcer.so");
    let built = fs::metadata(library)?.modified()?.duration_since(UNIX_EPOCH)?.as_secs_f64();
    let started = "SELECT extract(epoch FROM pg_postmaster_start_time())::float8";
    let started: f64 = cluster.connect().query_one(started, &[])?.get(0);
    if built > started {
        println!("(restarting it: the library is newer)");
        cluster.restart();
    }
    Ok(cluster)
}

fn psql(cluster: &Cluster) -> String {
    let program = cluster.installation().bindir().join("psql");
    format!("{} -h {} -p {} -U postgres {DATABASE}", program.display(), cluster.root().display(), cluster.port())
}

/// A shop that takes payments and writes them to its ledger.
struct Shop<'a> {
    cluster: &'a Cluster,
}

impl Shop<'_> {
    fn open(&self) -> Answer<()> {
        let mut admin = self.cluster.connect();
        admin.batch_execute(&format!("DROP DATABASE IF EXISTS {DATABASE} WITH (FORCE)"))?;
        admin.batch_execute(&format!("CREATE DATABASE {DATABASE}"))?;
        if admin.query("SELECT FROM pg_roles WHERE rolname = 'shop'", &[])?.is_empty() {
            admin.batch_execute("CREATE ROLE shop LOGIN")?;
        }
        title("A shop protects its payments endpoint");
        let mut session = self.session("admin", "postgres")?;
        session.run("CREATE EXTENSION idempotency_enforcer")?;
        session.run(&format!("SELECT idem_protect('{ENDPOINT}')"))?;
        session.run("SELECT idem_grant('shop')")?;
        session.run("CREATE TABLE ledger (key text, amount numeric CONSTRAINT card_limit CHECK (amount <= 1000))")?;
        session.run("GRANT SELECT, INSERT ON ledger TO shop")?;
        Ok(())
    }

    fn first_payment(&self) -> Answer<()> {
        title("The first payment executes");
        let mut shop = self.session("A", "shop")?;
        let outcome = pay(&mut shop, "order-1", 100)?;
        check(outcome == "execute", "it was told to execute")?;
        self.check_ledger(1, 100)
    }

    fn retry(&self) -> Answer<()> {
        title("The answer got lost; the client sends the same request again");
        let mut shop = self.session("A", "shop")?;
        let replay = shop.run(&claim(Some("order-1"), 100))?;
        check(replay.is("outcome", "replay"), "a replay: nothing is executed")?;
        check(
            replay.is("response_code", "201") && replay.is("body", &receipt(100)),
            "the same response, byte for byte",
        )?;
        self.check_ledger(1, 100)
    }

    fn simultaneous_payments(&self) -> Answer<()> {
        title("A double click: the same payment on two connections at the same time");
        let start = Barrier::new(2);
        let race = |name| -> Answer<(Session, String)> {
            let session = self.session(name, "shop").map(|s| Session { buffered: true, ..s });
            start.wait();
            let mut session = session?;
            let outcome = pay(&mut session, "order-2", 200)?;
            Ok((session, outcome))
        };
        let (a, b) = thread::scope(|scope| {
            let (a, b) = (scope.spawn(|| race("A")), scope.spawn(|| race("B")));
            (a.join().expect("connection A"), b.join().expect("connection B"))
        });
        let ((a, to_a), (b, to_b)) = (a?, b?);
        print!("{}{}", a.transcript, b.transcript);
        let (winner, other) = if to_a == "execute" { (to_a, to_b) } else { (to_b, to_a) };
        check(winner == "execute", "one was told to execute")?;
        check(
            ["in_progress", "replay"].contains(&other.as_str()),
            &format!("the other one was not: it was told {other}, at once"),
        )?;
        self.check_ledger(2, 300)?;
        let mut shop = self.session("B", "shop")?;
        let replay = shop.run(&claim(Some("order-2"), 200))?;
        check(replay.is("outcome", "replay") && replay.is("body", &receipt(200)), "a later retry gets the one result")
    }

    fn another_amount(&self) -> Answer<()> {
        title("The same key with another amount is refused");
        let mut shop = self.session("A", "shop")?;
        let refusal = shop.run(&claim(Some("order-1"), 999))?;
        check(refusal.is("outcome", "key_reused") && refusal.is("response_code", "422"), "422, ready to send")?;
        self.check_ledger(2, 300)
    }

    fn no_key(&self) -> Answer<()> {
        title("A payment without a key is refused");
        let mut shop = self.session("A", "shop")?;
        let refusal = shop.run(&claim(None, 100))?;
        check(refusal.is("outcome", "key_missing") && refusal.is("response_code", "400"), "400, ready to send")?;
        self.check_ledger(2, 300)
    }

    fn failed_payment(&self) -> Answer<()> {
        title("A payment fails for good: its failure is stored, and replayed");
        let mut shop = self.session("A", "shop")?;
        let body = r#"{"error": "over the card's limit"}"#;
        shop.run("BEGIN")?;
        let first = shop.run(&claim(Some("order-3"), 5000))?;
        check(first.is("outcome", "execute"), "it was told to execute")?;
        shop.run("SAVEPOINT work")?;
        let refused = shop.run_refused("INSERT INTO ledger VALUES ('order-3', 5000)")?;
        check(refused == "23514", "the work failed")?;
        shop.run("ROLLBACK TO work")?;
        shop.run(&format!("SELECT idem_fail('acme', '{ENDPOINT}', 'order-3', 402, '{}')", body.replace('\'', "''")))?;
        shop.run("COMMIT")?;
        let replay = shop.run(&claim(Some("order-3"), 5000))?;
        check(replay.is("outcome", "replay"), "the retry is a replay")?;
        check(replay.is("response_code", "402") && replay.is("body", body), "of the failure")?;
        self.check_ledger(2, 300)
    }

    fn crash(&self) -> Answer<()> {
        title("A crash between claim and completion leaves nothing behind");
        let mut shop = self.session("A", "shop")?;
        shop.run("BEGIN")?;
        let first = shop.run(&claim(Some("order-4"), 400))?;
        check(first.is("outcome", "execute"), "it was told to execute")?;
        shop.run("INSERT INTO ledger VALUES ('order-4', 400)")?;
        let backend: i32 = shop.client.query_one("SELECT pg_backend_pid()", &[])?.get(0);
        let log = self.cluster.log().len();
        println!("   {} kill -KILL {backend}", paint("36", "$"));
        self.cluster.kill(backend);
        let recovered = || self.cluster.log_since(log).contains("database system is ready to accept connections");
        wait_until("the server to recover", recovered);
        println!("     all of the server's processes have restarted");
        check(shop.client.is_closed() || shop.client.simple_query("").is_err(), "the connection is gone")?;
        self.check_ledger(2, 300)?;
        let mut shop = self.session("B", "shop")?;
        let outcome = pay(&mut shop, "order-4", 400)?;
        check(outcome == "execute", "the retry was told to execute, at once")?;
        self.check_ledger(3, 700)
    }

    /// A new connection; its statements are shown with its name.
    fn session(&self, name: &'static str, role: &str) -> Answer<Session> {
        let client = self.cluster.config(DATABASE, role).connect(NoTls)?;
        Ok(Session { name, client, buffered: false, transcript: String::new() })
    }

    fn check_ledger(&self, payments: i64, total: i64) -> Answer<()> {
        let mut client = self.cluster.config(DATABASE, "shop").connect(NoTls)?;
        let row = client.query_one("SELECT count(*), coalesce(sum(amount), 0)::bigint FROM ledger", &[])?;
        let (count, sum): (i64, i64) = (row.get(0), row.get(1));
        check(
            (count, sum) == (payments, total),
            &format!("the ledger has {payments} payment{}, {total} in all", if payments == 1 { "" } else { "s" }),
        )
        .map_err(|e| format!("{e}; it has {count}, {sum} in all").into())
    }
}

/// What a request to the endpoint does, as an application writes it; returns the outcome.
fn pay(session: &mut Session, key: &str, amount: u32) -> Answer<String> {
    session.run("BEGIN")?;
    let outcome = session.run(&claim(Some(key), amount))?.get("outcome");
    if outcome == "execute" {
        session.run(&format!("INSERT INTO ledger VALUES ('{key}', {amount})"))?;
        session.run(&format!("SELECT idem_complete('acme', '{ENDPOINT}', '{key}', 201, '{}')", receipt(amount)))?;
    }
    session.run("COMMIT")?;
    Ok(outcome)
}

fn claim(key: Option<&str>, amount: u32) -> String {
    let key = key.map_or("NULL".to_owned(), |k| format!("'{k}'"));
    format!(
        "SELECT outcome, response_code, convert_from(response_body, 'UTF8') AS body\n  \
           FROM idem_claim('acme', '{ENDPOINT}', {key}, '{{\"amount\": {amount}}}')"
    )
}

/// The response to a payment. Its spaces would not survive in a jsonb column.
fn receipt(amount: u32) -> String {
    format!("{{\"charged\":   {amount}}}")
}

/// A connection that shows what it runs.
struct Session {
    name: &'static str,
    client: Client,
    /// Keeps what it shows, for two that run at the same time.
    buffered: bool,
    transcript: String,
}

impl Session {
    /// Runs a statement, and shows it and the rows it returned; returns the first.
    fn run(&mut self, sql: &str) -> Answer<Fields> {
        self.show_statement(sql);
        let mut rows = Vec::new();
        for message in self.client.simple_query(sql)? {
            if let SimpleQueryMessage::Row(row) = message {
                let names = row.columns().iter().map(|c| c.name().to_owned());
                let values = (0..row.len()).map(|i| row.get(i).map(str::to_owned));
                rows.push(Fields(names.zip(values).collect()));
            }
        }
        for Fields(fields) in &rows {
            // A function that returns nothing has one empty column.
            let shown = fields.iter().filter_map(|(name, value)| match value.as_deref() {
                None | Some("") => None,
                Some(value) => Some(format!("{} {}", paint("2", name), shortened(value))),
            });
            let line = shown.collect::<Vec<_>>().join("  ");
            if !line.is_empty() {
                self.show(&format!("     {line}\n"));
            }
        }
        Ok(rows.into_iter().next().unwrap_or(Fields(Vec::new())))
    }

    /// Runs a statement that is to fail; returns its SQLSTATE.
    fn run_refused(&mut self, sql: &str) -> Answer<String> {
        self.show_statement(sql);
        match self.client.simple_query(sql) {
            Ok(_) => Err("this statement was to fail".into()),
            Err(error) => {
                let error = error.as_db_error().ok_or("the connection broke")?;
                self.show(&format!("     {} {}\n", paint("33", "ERROR"), error.message()));
                Ok(error.code().code().to_owned())
            }
        }
    }

    fn show_statement(&mut self, sql: &str) {
        let lines = sql.replace('\n', &format!("\n   {}", " ".repeat(self.name.len() + 2)));
        self.show(&format!("   {} {lines};\n", paint("36", &format!("{}>", self.name))));
    }

    fn show(&mut self, text: &str) {
        if self.buffered {
            self.transcript.push_str(text);
        } else {
            print!("{text}");
        }
    }
}

/// A row: names and values, as text.
struct Fields(Vec<(String, Option<String>)>);

impl Fields {
    fn get(&self, name: &str) -> String {
        self.0.iter().find(|(n, _)| n == name).and_then(|(_, v)| v.clone()).unwrap_or_default()
    }

    fn is(&self, name: &str, value: &str) -> bool {
        self.get(name) == value
    }
}

/// A value as far as it fits into a line.
fn shortened(value: &str) -> String {
    match value.char_indices().nth(70) {
        Some((end, _)) => format!("{}...", &value[..end]),
        None => value.to_owned(),
    }
}

fn title(text: &str) {
    println!("\n{}", paint("1", text));
}

fn check(holds: bool, promise: &str) -> Answer<()> {
    if !holds {
        return Err(format!("not so: {promise}").into());
    }
    println!("   {} {promise}", paint("32", "✓"));
    Ok(())
}

/// Colours, on a terminal only.
fn paint(code: &str, text: &str) -> String {
    if std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none() {
        format!("\x1b[{code}m{text}\x1b[0m")
    } else {
        text.to_owned()
    }
}
