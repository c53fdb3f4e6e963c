//! The payment example as real processes: a cluster, the provider, the service, reconcilers, and clients over HTTP.

use harness::{wait_for, wait_until, Calls, Cluster};
use postgres::{Client, NoTls};
use serde_json::{json, Value};
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;
use tempfile::TempDir;

const LOG: &str = "log";

pub struct World {
    cluster: Cluster,
    provider_port: u16,
    _provider: Process,
    /// The provider's ledger, and what all processes print.
    files: TempDir,
}

/// A process that dies with the value.
pub struct Process(Child);

pub struct Service {
    process: Process,
    port: u16,
}

/// An HTTP response, without the headers that say when and by what it was sent.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub code: u16,
    pub headers: Vec<String>,
    pub body: String,
}

/// An order with its Idempotency-Key: what a client sends, and sends again.
#[derive(Debug, Clone)]
pub struct Order {
    pub id: String,
    pub card: &'static str,
}

impl World {
    /// `slow`: seconds that the provider takes for `card_slow`.
    pub fn start(slow: &str) -> World {
        require_modules();
        let cluster = Cluster::start(&["shared_preload_libraries = 'idempotency_enforcer'"]);
        let schema = std::fs::read_to_string(example().join("schema.sql")).expect("schema.sql");
        let mut admin = cluster.connect();
        admin.batch_execute(&schema).expect("schema.sql");
        // Soon stuck, so that the test need not wait for half a minute.
        let protect = "SELECT idempotency.idem_protect('POST /payments', 'external', stuck_after => '1 second')";
        admin.batch_execute(protect).unwrap();
        let files = TempDir::with_prefix("payments-").expect("a temporary directory");
        let provider_port = free_port();
        let provider = Process::start(
            &files,
            python()
                .args(["provider.py", "--slow", slow, "--port", &provider_port.to_string(), "--ledger"])
                .arg(files.path().join("charges.sqlite")),
        );
        until_listening("the provider", provider_port);
        World { cluster, provider_port, _provider: provider, files }
    }

    /// With the extension's schema in its search_path, which the service does not have.
    pub fn admin(&self) -> Client {
        let mut config = self.cluster.config("postgres", "postgres");
        config.options("-c search_path=public,idempotency").connect(NoTls).expect("the database")
    }

    fn python(&self, role: &str, variables: &[(&str, &str)]) -> Command {
        let mut command = python();
        command
            .env("DATABASE_URL", format!("host=127.0.0.1 port={} dbname=postgres user={role}", self.cluster.port()))
            .env("PROVIDER_URL", format!("http://127.0.0.1:{}", self.provider_port))
            .env_remove("PAYMENTS_CRASH_AT")
            .envs(variables.iter().copied());
        command
    }

    /// Starts a service, without waiting for it.
    pub fn service(&self, variables: &[(&str, &str)]) -> Service {
        let port = free_port();
        let mut command = self.python("payments_service", variables);
        command.args(["-m", "uvicorn", "service:app", "--log-level", "warning", "--port", &port.to_string()]);
        Service { process: Process::start(&self.files, &mut command), port }
    }

    /// Starts a reconciler whose leases are a second long.
    pub fn reconciler(&self, variables: &[(&str, &str)]) -> Process {
        let mut command = self.python("payments_reconciler", variables);
        command.arg("reconciler.py").envs([("PAYMENTS_LEASE", "1"), ("PAYMENTS_PAUSE", "0.1")]);
        Process::start(&self.files, &mut command)
    }

    /// What the provider has done for an order: the statuses of its charges.
    pub fn charges(&self, order: &Order) -> Vec<String> {
        let answer = send(self.provider_port, "GET", "/charges", &[], b"").expect("the provider");
        let all: Vec<Value> = serde_json::from_str(&answer.body).expect("charges");
        let of_order = all.iter().filter(|charge| charge["reference"] == order.id.as_str());
        of_order.map(|charge| charge["status"].as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Waits until the provider has got an order.
    pub fn until_provider_has(&self, order: &Order) {
        let mut admin = self.admin();
        let key = wait_for("the claim", || {
            let sql = "SELECT provider_key FROM idempotency_keys WHERE key = $1";
            admin.query_opt(sql, &[&order.id]).unwrap().map(|row| row.get::<_, uuid::Uuid>(0))
        });
        wait_until("the provider to get the request", || {
            let path = format!("/charges/{key}");
            send(self.provider_port, "GET", &path, &[], b"").is_some_and(|answer| answer.code == 200)
        });
    }

    /// The attempt of an order's claim; 0 when there is none.
    pub fn attempt(&self, order: &Order) -> i32 {
        let sql = "SELECT coalesce(max(attempt), 0) FROM idempotency_keys WHERE key = $1";
        self.admin().query_one(sql, &[&order.id]).unwrap().get(0)
    }

    /// The state of everything after clients and reconcilers have had their turn: charged once or declined, told the
    /// same each time, nothing open, and our own books agree with the provider's.
    pub fn check_settled(&self, service: &Service, order: &Order, answer: &Answer) {
        let declined = order.card == "card_declined";
        let (code, charged, booked) = if declined { (402, "declined", "declined") } else { (201, "succeeded", "paid") };
        let context = format!("{order:?}, answered {}", answer.body);
        assert_eq!(answer.code, code, "{context}");
        assert_eq!(self.charges(order), [charged], "{context}");
        for _ in 0..2 {
            assert_eq!(service.pay(order).as_ref(), Some(answer), "{context}");
        }
        let mut admin = self.admin();
        let sql = "SELECT p.id::text, p.status, p.charge, k.status, k.open_since IS NULL AND k.lease_until IS NULL
                     FROM payments p JOIN idempotency_keys k ON k.provider_key = p.id WHERE p.order_id = $1";
        let rows = admin.query(sql, &[&order.id]).unwrap();
        assert_eq!(rows.len(), 1, "{context}");
        let row = &rows[0];
        let stored = if declined { "failed" } else { "succeeded" };
        assert_eq!((row.get(1), row.get(3), row.get(4)), (booked, stored, true), "{context}");
        let body: Value = serde_json::from_str(&answer.body).expect("JSON");
        assert_eq!(body["payment"], row.get::<_, &str>(0), "{context}");
        assert_eq!(body["charge"], row.get::<_, &str>(2), "{context}");
    }

    pub fn check_nothing_is_open(&self) {
        let open = "SELECT count(*) FROM idempotency_keys WHERE status = 'in_progress' OR open_since IS NOT NULL";
        assert_eq!(self.admin().value::<i64>(open), 0);
    }
}

impl Service {
    pub fn until_ready(&self) -> &Service {
        until_listening("the service", self.port);
        self
    }

    /// What a client is answered; `None` when the connection is lost before that.
    pub fn pay(&self, order: &Order) -> Option<Answer> {
        let key = format!("Idempotency-Key: {}", order.id);
        let body = json!({"order": order.id, "amount": 1999, "currency": "EUR", "card": order.card}).to_string();
        send(self.port, "POST", "/payments", &["X-Account: acct_1", &key], body.as_bytes())
    }

    /// Sends the order again until the answer is final.
    pub fn pay_until_answered(&self, order: &Order) -> Answer {
        wait_for("a final answer", || self.pay(order).filter(|a| a.code != 409 && a.code < 500))
    }

    /// Sends a request without an Idempotency-Key, or with another body.
    pub fn post(&self, headers: &[&str], body: &str) -> Answer {
        send(self.port, "POST", "/payments", headers, body.as_bytes()).expect("an answer")
    }

    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: the process is a child that has not been waited for.
        assert_eq!(unsafe { libc::kill(self.process.0.id() as libc::pid_t, signal) }, 0);
    }

    pub fn until_crashed(self) {
        self.process.until_crashed();
    }
}

impl Process {
    fn start(files: &TempDir, command: &mut Command) -> Process {
        let log = File::options().create(true).append(true).open(files.path().join(LOG)).expect("the log");
        command.stdout(log.try_clone().expect("the log")).stderr(log);
        Process(command.spawn().unwrap_or_else(|e| panic!("{command:?}: {e}")))
    }

    /// Until it has been killed: neither by an error of its own nor by an ordinary end.
    pub fn until_crashed(mut self) {
        let status = wait_for("the process to crash", || self.0.try_wait().expect("its state"));
        assert_eq!(status.signal(), Some(libc::SIGKILL), "{status}");
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", std::fs::read_to_string(self.files.path().join(LOG)).unwrap_or_default());
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn example() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").join("examples/payments")
}

fn python() -> Command {
    let python = std::env::var_os("CLIENT_PYTHON").filter(|p| !p.is_empty()).unwrap_or("python3".into());
    let mut command = Command::new(python);
    command.current_dir(example()).env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONUNBUFFERED", "1");
    command
}

fn require_modules() {
    let mut command = python();
    let output = command.args(["-c", "import fastapi, httpx, psycopg, psycopg_pool, uvicorn"]).output();
    let output = output.unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "CLIENT_PYTHON must name a Python that has examples/payments/requirements.txt; `make test` sees to it\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port()
}

fn until_listening(what: &str, port: u16) {
    wait_until(&format!("{what} to listen"), || TcpStream::connect(("127.0.0.1", port)).is_ok());
}

/// One HTTP request; `None` when there is no complete answer.
fn send(port: u16, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
    let mut request = format!("{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n");
    for header in headers {
        request += &format!("{header}\r\n");
    }
    request += &format!("Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(&[request.as_bytes(), body].concat()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&answer[..end]).into_owned();
    let mut lines = head.lines();
    let code = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let passing = ["date:", "server:", "connection:"];
    let headers =
        lines.filter(|l| !passing.iter().any(|p| l.to_lowercase().starts_with(p))).map(str::to_owned).collect();
    Some(Answer { code, headers, body: String::from_utf8(answer.split_off(end + 4)).expect("UTF-8") })
}
