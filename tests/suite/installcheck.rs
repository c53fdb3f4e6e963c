//! The regression tests that people run against a server of theirs, `make installcheck`; and the install script.

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

/// `make` concatenates the files in the order of their lines; `cargo pgrx` sorts them by what each requires. A chain
/// leaves it one order only.
#[test]
fn both_ways_of_building_run_the_same_files_in_the_same_order() {
    let source = include_str!("../../src/lib.rs");
    let files: Vec<&str> = source.lines().filter(|line| line.starts_with("extension_sql_file!")).collect();
    assert!(files.len() > 1 && files[0].contains(", bootstrap)"), "{files:?}");
    for pair in files.windows(2) {
        let quoted: Vec<&str> = pair[0].split('"').collect();
        let (file, name) = (quoted[1], quoted[3]);
        assert_eq!(file, format!("../sql/{name}.sql"));
        assert!(pair[1].ends_with(&format!("requires = [\"{name}\"]);")), "{} comes after {}", pair[1], pair[0]);
    }
}
