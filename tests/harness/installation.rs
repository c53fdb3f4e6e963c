//! The PostgreSQL installation under test and how its programs are run.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The system user that runs PostgreSQL when the tests run as root, which PostgreSQL refuses to be.
const SERVER_USER: &str = "postgres";

/// A PostgreSQL installation, found by `pg_config`.
#[derive(Debug, Clone)]
pub struct Installation {
    pg_config: PathBuf,
    bindir: PathBuf,
}

impl Installation {
    /// The one of the environment variable `PG_CONFIG`, else of the `pg_config` on the path.
    pub fn find() -> Self {
        let pg_config = std::env::var_os("PG_CONFIG").filter(|p| !p.is_empty()).unwrap_or("pg_config".into());
        let pg_config = PathBuf::from(pg_config);
        let bindir = ask(&pg_config, "--bindir").into();
        Installation { pg_config, bindir }
    }

    /// What `pg_config` says of a directory, for example `--sharedir`.
    pub fn ask(&self, option: &str) -> String {
        ask(&self.pg_config, option)
    }

    /// The major version.
    pub fn major(&self) -> u32 {
        let version = self.ask("--version");
        let digits = version.trim_start_matches(|c: char| !c.is_ascii_digit());
        let major = digits.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        major.parse().unwrap_or_else(|_| panic!("no version in {version:?}"))
    }

    /// Whether a loadable module is installed, as those of contrib may not be.
    pub fn has_module(&self, name: &str) -> bool {
        Path::new(&self.ask("--pkglibdir")).join(format!("{name}.so")).exists()
    }

    pub fn bindir(&self) -> &Path {
        &self.bindir
    }

    /// A program of the installation, as this user: a client.
    pub fn client(&self, program: &str) -> Command {
        let mut command = Command::new(self.bindir.join(program));
        command.env_remove("RUST_BACKTRACE");
        command
    }

    /// Any program, as the user that may run a server.
    pub fn as_server_user(&self, program: impl AsRef<Path>) -> Command {
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", SERVER_USER, "--"]).arg(program.as_ref());
            command
        } else {
            Command::new(program.as_ref())
        };
        // Backtraces would be put into the DETAIL of errors; a server is not started from a private directory.
        command.env_remove("RUST_BACKTRACE").current_dir("/");
        command
    }

    /// A program of the installation, as the user that may run a server.
    pub fn server(&self, program: &str) -> Command {
        self.as_server_user(self.bindir.join(program))
    }

    /// Gives a directory to the user that runs the server.
    pub fn hand_over(&self, directory: &Path) {
        if is_root() {
            run(Command::new("chown").arg(SERVER_USER).arg(directory));
        }
    }
}

fn ask(pg_config: &Path, option: &str) -> String {
    let output = run(Command::new(pg_config).arg(option));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub(crate) fn is_root() -> bool {
    // SAFETY: geteuid has no preconditions and cannot fail.
    unsafe { libc::geteuid() == 0 }
}

/// Runs a command to its end; panics with its output when it fails.
pub(crate) fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    output
}
