//! Every SQL block of the documentation runs, in order, and prints what the documentation says it prints. Every link within
//! the documentation leads somewhere.
//!
//! The `sql` blocks of a file are one psql session; `<!-- in a new database -->` before a block starts another. A `text`
//! block right after an `sql` block is the end of what that block prints. Blocks may be indented, as in a list.

mod links;

use harness::Cluster;
use std::path::{Path, PathBuf};

const NEW_DATABASE: &str = "<!-- in a new database -->";
const MARK: &str = "=== end of block";

#[derive(Debug, Default, PartialEq)]
struct Block {
    line: usize,
    in_new_database: bool,
    sql: String,
    prints: Option<String>,
}

#[test]
fn every_sql_block_of_the_documentation_runs_and_prints_what_it_says() {
    // The examples make roles, which belong to the whole server.
    let cluster = Cluster::start(&["shared_preload_libraries = 'idempotency_enforcer'"]);
    let mut blocks_run = 0;
    for file in documents() {
        let text = std::fs::read_to_string(&file).expect("a document");
        let blocks = blocks(&text);
        for session in blocks.chunk_by(|_, next| !next.in_new_database) {
            run(&cluster, &file, session);
        }
        blocks_run += blocks.len();
    }
    assert!(blocks_run >= 8, "only {blocks_run} blocks were found");
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository")
}

/// The README and what is in `docs/`.
fn documents() -> Vec<PathBuf> {
    let root = root();
    let mut found = vec![root.join("README.md")];
    if let Ok(docs) = std::fs::read_dir(root.join("docs")) {
        found.extend(docs.flatten().map(|entry| entry.path()).filter(|p| p.extension().is_some_and(|e| e == "md")));
    }
    found.sort();
    found
}

fn run(cluster: &Cluster, file: &Path, blocks: &[Block]) {
    let database = cluster.empty_database("");
    let script: String = blocks.iter().map(|b| format!("{}\n\\echo '{MARK}'\n", b.sql)).collect();
    let script_file = tempfile::NamedTempFile::new().expect("a script");
    std::fs::write(script_file.path(), script).expect("the script");
    let output = cluster
        .installation()
        .client("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-U", "postgres", "-d", database.name()])
        .args(["-p", &cluster.port().to_string(), "-f"])
        .arg(script_file.path())
        .output()
        .expect("psql");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let results: Vec<&str> = printed.split(&format!("{MARK}\n")).collect();
    for (i, block) in blocks.iter().enumerate() {
        let place = format!("{}:{}", file.display(), block.line);
        assert!(i + 1 < results.len(), "{place}: {}", String::from_utf8_lossy(&output.stderr));
        if let Some(expected) = &block.prints {
            let (expected, printed) = (trim_lines(expected), trim_lines(results[i]));
            assert!(printed.ends_with(&expected), "{place} prints\n{printed}\ninstead of\n{expected}");
        }
    }
}

/// Without the blanks that psql pads lines with and that editors remove.
fn trim_lines(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().map(str::trim_end).collect();
    lines.join("\n")
}

fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let mut lines = markdown.lines().enumerate();
    let mut in_new_database = false;
    let mut follows_sql = false;
    while let Some((number, line)) = lines.next() {
        match line.trim() {
            NEW_DATABASE => in_new_database = true,
            "" => {}
            fence if fence.starts_with("```") => {
                let indentation = line.len() - line.trim_start().len();
                let content: String = lines
                    .by_ref()
                    .map(|(_, l)| l)
                    .take_while(|l| l.trim() != "```")
                    .map(|l| format!("{}\n", l.get(indentation..).unwrap_or_default()))
                    .collect();
                match fence {
                    "```sql" => {
                        blocks.push(Block { line: number + 1, in_new_database, sql: content, prints: None });
                        in_new_database = false;
                    }
                    "```text" if follows_sql => {
                        if let Some(block) = blocks.last_mut() {
                            block.prints = Some(content);
                        }
                    }
                    _ => {}
                }
                follows_sql = fence == "```sql";
            }
            _ => follows_sql = false,
        }
    }
    blocks
}

#[test]
fn blocks_are_found_with_what_they_print() {
    let text = "a\n```sql\nSELECT 1;\n```\n\n```text\n1\n```\nb\n<!-- in a new database -->\n```sql\nX\n```\nc\n```text\n2\n```\n\
                - d\n\n  ```sql\n  Y\n\n    Z\n  ```\n";
    let expected = [
        Block { line: 2, in_new_database: false, sql: "SELECT 1;\n".into(), prints: Some("1\n".into()) },
        Block { line: 11, in_new_database: true, sql: "X\n".into(), prints: None },
        Block { line: 20, in_new_database: false, sql: "Y\n\n  Z\n".into(), prints: None },
    ];
    assert_eq!(blocks(text), expected);
}
