//! The regression tests that people run against a server of theirs: `make installcheck`.

use harness::Cluster;
use std::path::Path;
use std::process::Command;

#[test]
fn make_installcheck_passes_on_a_running_server() {
    let cluster = Cluster::shared();
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package is in the repository");
    let mut make = Command::new("make");
    make.arg("installcheck").current_dir(repository).env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    make.env("PGHOST", "127.0.0.1").env("PGPORT", cluster.port().to_string()).env("PGUSER", "postgres");
    let output = make.output().expect("make");
    let differences = std::fs::read_to_string(repository.join("target/installcheck/regression.diffs"));
    assert!(
        output.status.success(),
        "{}{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        differences.unwrap_or_default()
    );
}
