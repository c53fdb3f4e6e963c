//! A PostgreSQL cluster of our own: its own data directory, port and socket.

use crate::installation::{is_root, run};
use crate::{wait_for, Database, Installation};
use postgres::{Client, Config, NoTls};
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock};
use tempfile::TempDir;

/// How to stop a server.
#[derive(Debug, Clone, Copy)]
pub enum Shutdown {
    /// Aborts transactions, writes a checkpoint.
    Fast,
    /// Stops as by a power failure; the next start recovers.
    Immediate,
}

/// A running server. Stopped and removed when dropped.
pub struct Cluster {
    installation: Installation,
    root: PathBuf,
    host: String,
    port: u16,
    databases: AtomicU32,
    _directory: Option<TempDir>,
}

/// What every cluster is configured with; what a test adds comes after it and wins.
const SETTINGS: &[&str] = &[
    "fsync = off",
    "max_connections = 300",
    "max_prepared_transactions = 20",
    "listen_addresses = '127.0.0.1'",
    "log_line_prefix = '%m [%p] %b %d '",
    "log_checkpoints = off",
    // What waits for a lock where nothing should wait fails, instead of hanging.
    "lock_timeout = '30 s'",
];

static SHARED: OnceLock<Cluster> = OnceLock::new();

impl Cluster {
    /// The server that all tests of this process share; for tests that neither stop nor configure it.
    pub fn shared() -> &'static Cluster {
        SHARED.get_or_init(|| {
            // SAFETY: registers a function that takes no argument and does not unwind.
            unsafe { libc::atexit(stop_shared) };
            Cluster::start(&[])
        })
    }

    /// A server of one's own, with these lines added to its postgresql.conf.
    pub fn start(settings: &[&str]) -> Cluster {
        let directory = TempDir::with_prefix("idempotency-").expect("a temporary directory");
        let root = directory.path().to_owned();
        let cluster = Cluster::create(&root, settings, Some(directory));
        cluster.start_again();
        cluster
    }

    /// A server in a directory that stays: created when it is not there yet, and left running. Whoever may enter the
    /// directory may connect, by the socket in it, and nobody else.
    pub fn keep_at(root: &Path, settings: &[&str]) -> Cluster {
        let port_file = root.join("port");
        if let Some(port) = fs::read_to_string(&port_file).ok().and_then(|p| p.trim().parse().ok()) {
            let installation = Installation::find();
            let cluster = Cluster {
                installation,
                root: root.into(),
                host: root.display().to_string(),
                port,
                databases: AtomicU32::new(0),
                _directory: None,
            };
            if !cluster.is_running() {
                cluster.start_again();
            }
            return cluster;
        }
        fs::create_dir_all(root).expect("a directory for the cluster");
        let mut cluster = Cluster::create(root, settings, None);
        cluster.configure(&["listen_addresses = ''"]);
        cluster.host = root.display().to_string();
        fs::write(port_file, cluster.port.to_string()).expect("the port file");
        cluster.start_again();
        cluster
    }

    fn create(root: &Path, settings: &[&str], directory: Option<TempDir>) -> Cluster {
        let installation = Installation::find();
        installation.hand_over(root);
        let cluster = Cluster {
            installation,
            root: root.into(),
            host: "127.0.0.1".into(),
            port: free_port(),
            databases: AtomicU32::new(0),
            _directory: directory,
        };
        let template = template(&cluster.installation);
        run(cluster.installation.as_server_user("cp").arg("-a").arg(template).arg(cluster.data()));
        cluster.configure(SETTINGS);
        cluster.configure(&[
            &format!("port = {}", cluster.port),
            &format!("unix_socket_directories = '{}'", cluster.root.display()),
        ]);
        cluster.configure(settings);
        cluster
    }

    /// Adds lines to postgresql.conf; they take effect at the next start or reload.
    pub fn configure(&self, settings: &[&str]) {
        let path = self.data().join("postgresql.conf");
        let mut text = fs::read_to_string(&path).expect("postgresql.conf");
        for line in settings {
            text.push_str(line);
            text.push('\n');
        }
        fs::write(&path, text).expect("postgresql.conf");
    }

    pub fn installation(&self) -> &Installation {
        &self.installation
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the data, the log and the socket.
    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// The server's log so far.
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.root.join("log")).unwrap_or_default()).into_owned()
    }

    /// The lines of the log that were written since it had `since` bytes.
    pub fn log_since(&self, since: usize) -> String {
        self.log().get(since..).unwrap_or_default().to_owned()
    }

    fn pg_ctl(&self, action: &str) -> Command {
        self.pg_ctl_by(self.installation.server("pg_ctl"), action)
    }

    fn pg_ctl_by(&self, mut command: Command, action: &str) -> Command {
        command.arg(action).arg("-D").arg(self.data()).args(["-w", "-t", "60"]);
        command
    }

    /// Starts the server after it was stopped or created.
    pub fn start_again(&self) {
        self.start_by(self.pg_ctl("start"));
    }

    /// As [`Cluster::start_again`], under a limit that is the argument of the shell's `ulimit`.
    pub fn start_again_under(&self, limit: &str) {
        let mut shell = self.installation.as_server_user("sh");
        shell
            .args(["-c", &format!("ulimit {limit} && exec \"$0\" \"$@\"")])
            .arg(self.installation.bindir().join("pg_ctl"));
        self.start_by(self.pg_ctl_by(shell, "start"));
    }

    fn start_by(&self, mut command: Command) {
        let log = self.root.join("log");
        command.arg("-l").arg(&log).stdin(std::process::Stdio::null());
        // pg_ctl leaves the server with its own output: a pipe would stay open as long as the server runs.
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        let status = command.status().unwrap_or_else(|e| panic!("{command:?}: {e}"));
        assert!(status.success(), "{command:?}: {status}\n{}", self.log());
    }

    pub fn stop(&self, how: Shutdown) {
        let mode = match how {
            Shutdown::Fast => "fast",
            Shutdown::Immediate => "immediate",
        };
        run(self.pg_ctl("stop").args(["-m", mode]));
    }

    pub fn restart(&self) {
        self.stop(Shutdown::Fast);
        self.start_again();
    }

    /// A hot standby that streams from this server, with this server's configuration.
    pub fn standby(&self) -> Cluster {
        let directory = TempDir::with_prefix("idempotency-standby-").expect("a temporary directory");
        let root = directory.path().to_owned();
        self.installation.hand_over(&root);
        let port = free_port();
        let mut backup = self.installation.server("pg_basebackup");
        backup.args(["-h", "127.0.0.1", "-p", &self.port.to_string(), "-U", "postgres", "-R", "-c", "fast", "-D"]);
        run(backup.arg(root.join("data")));
        let standby = Cluster {
            installation: self.installation.clone(),
            root,
            host: "127.0.0.1".into(),
            port,
            databases: AtomicU32::new(0),
            _directory: Some(directory),
        };
        standby.configure(&[
            &format!("port = {port}"),
            &format!("unix_socket_directories = '{}'", standby.root.display()),
        ]);
        standby.start_again();
        standby
    }

    /// Makes a standby a primary.
    pub fn promote(&self) {
        run(&mut self.pg_ctl("promote"));
    }

    /// Makes the server read its configuration again.
    pub fn reload(&self, settings: &[&str]) {
        self.configure(settings);
        run(&mut self.pg_ctl("reload"));
    }

    pub fn is_running(&self) -> bool {
        self.installation
            .server("pg_ctl")
            .args(["status", "-D"])
            .arg(self.data())
            .output()
            .is_ok_and(|o| o.status.success())
    }

    /// Kills a process of the server with SIGKILL. A killed backend makes all of the server restart.
    pub fn kill(&self, pid: i32) {
        // SAFETY: kill has no preconditions. The server's user is this one, unless this one is root.
        let result = unsafe { libc::kill(pid, libc::SIGKILL) };
        assert_eq!(result, 0, "kill {pid}: {}", std::io::Error::last_os_error());
    }

    /// How to connect to a database of the cluster as a role: over TCP, but to a cluster that stays by its socket.
    pub fn config(&self, database: &str, role: &str) -> Config {
        let mut config = Config::new();
        config.host(&self.host).port(self.port).dbname(database).user(role);
        config
    }

    /// A connection as superuser to the database `postgres`, once the server takes connections.
    pub fn connect(&self) -> Client {
        wait_for("the server to take connections", || self.config("postgres", "postgres").connect(NoTls).ok())
    }

    /// A new database with the extension in its schema `public`; dropped with the value.
    pub fn database(&self) -> Database<'_> {
        let database = self.empty_database("");
        database.admin().batch_execute("CREATE EXTENSION idempotency_enforcer").expect("CREATE EXTENSION");
        database
    }

    /// The same, where claims of endpoints that are not registered go through: for tests that are about neither the
    /// registry nor the commit guard.
    pub fn lenient_database(&self) -> Database<'_> {
        let database = self.database();
        database.let_unregistered_through();
        database
    }

    /// A new database without the extension; `options` are those of CREATE DATABASE.
    pub fn empty_database(&self, options: &str) -> Database<'_> {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        // CREATE DATABASE refuses a template that somebody is connected to, so one at a time.
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(|e| e.into_inner());
        let mut admin = self.connect();
        admin.batch_execute(&format!("CREATE DATABASE {name} {options}")).expect("CREATE DATABASE");
        Database::new(self, name)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if self._directory.is_some() {
            if self.is_running() {
                let _ = self.pg_ctl("stop").args(["-m", "immediate"]).output();
            }
            // The data directory belongs to the server's user, in a directory that may not be removable by ours.
            let _ = self.installation.as_server_user("rm").arg("-rf").arg(self.data()).output();
        }
    }
}

extern "C" fn stop_shared() {
    if let Some(cluster) = SHARED.get() {
        let _ = cluster.pg_ctl("stop").args(["-m", "immediate"]).output();
        let _ = fs::remove_dir_all(&cluster.root);
    }
    if let Some(template) = TEMPLATE.get() {
        let _ = fs::remove_dir_all(template);
    }
}

static TEMPLATE: OnceLock<PathBuf> = OnceLock::new();

/// A data directory to copy: initdb takes seconds, a copy does not.
fn template(installation: &Installation) -> PathBuf {
    let root = TEMPLATE.get_or_init(|| {
        // SAFETY: as in `Cluster::shared`; registering twice stops nothing twice.
        unsafe { libc::atexit(stop_shared) };
        let root = TempDir::with_prefix("idempotency-template-").expect("a temporary directory").keep();
        installation.hand_over(&root);
        run(installation
            .server("initdb")
            .args(["--no-sync", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "-D"])
            .arg(root.join("data")));
        root
    });
    if is_root() {
        assert!(root.join("data").exists());
    }
    root.join("data")
}

/// A port of 127.0.0.1 that nobody listens on, and that nobody is given by chance before the caller does: it lies below
/// those that the system gives to connections, and each is handed out once a process.
pub fn free_port() -> u16 {
    static HANDED_OUT: AtomicU32 = AtomicU32::new(0);
    const FIRST: u32 = 10_000;
    const COUNT: u32 = 20_000;
    let start = std::process::id() * 97;
    for _ in 0..COUNT {
        let port = FIRST + (start + HANDED_OUT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        if TcpListener::bind(("127.0.0.1", port as u16)).is_ok() {
            return port as u16;
        }
    }
    panic!("no free port")
}
