//! `monitoring/postgres_exporter/queries.yaml`, with the real exporter and a live server.

use super::{one_of_everything, Samples, EXPECTED};
use harness::{wait_for, Cluster};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// Where Debian's package puts it; an upstream build has the other name.
const PROGRAMS: &[&str] = &["prometheus-postgres-exporter", "postgres_exporter"];

/// What the exporter exposed, and what it is of.
pub struct Scrape {
    text: String,
    pub samples: Samples,
    database: String,
    second: String,
    in_view: Samples,
}

/// The exporter's answer for a database in which one of everything has happened; scraped once for all tests.
pub fn scrape() -> &'static Scrape {
    static SCRAPE: OnceLock<Scrape> = OnceLock::new();
    SCRAPE.get_or_init(|| {
        let cluster = Cluster::start(&[
            "shared_preload_libraries = 'idempotency_enforcer'",
            "idempotency_enforcer.sweep_interval = 0",
        ]);
        let db = cluster.database();
        let second = cluster.database();
        let mut c = db.admin();
        one_of_everything(&mut c);
        let role = db.role("scraper");
        c.batch_execute(&format!("GRANT pg_monitor TO {role}")).unwrap();
        let exporter = Exporter::start(
            &format!("postgresql://{role}@127.0.0.1:{}/{}?sslmode=disable", cluster.port(), db.name()),
            &[db.name(), second.name()],
        );
        let text = exporter.metrics();
        Scrape {
            samples: parse(&text),
            text,
            database: db.name().to_owned(),
            second: second.name().to_owned(),
            in_view: super::read(&mut c),
        }
    })
}

#[test]
fn the_exporter_exposes_each_metric_with_its_labels() {
    let scrape = scrape();
    assert_eq!(scrape.samples.get("pg_exporter_last_scrape_error"), Some(&0.0), "{}", scrape.text);
    let ours = scrape.samples.iter().filter(|(n, _)| n.starts_with("idempotency_"));
    let (second, first): (Vec<_>, Vec<_>) = ours.partition(|(n, _)| n.contains(&scrape.second));
    assert!(second.len() >= 10, "both databases are scraped: {}", scrape.text);
    let exposed: Samples = first.into_iter().map(own).collect();
    let in_view: Vec<&String> = scrape.in_view.keys().collect();
    assert_eq!(exposed.keys().collect::<Vec<_>>(), in_view, "{}", scrape.text);
    for (name, value) in EXPECTED {
        assert_eq!(exposed.get(*name), Some(value), "{name} in {}", scrape.text);
    }
    assert!(exposed.values().all(|v| v.is_finite()), "{exposed:#?}");
    assert!(!scrape.text.contains("secret"), "a tenant or a key is exposed: {}", scrape.text);

    /// The sample without what the exporter adds: the server, and our label of the database.
    fn own((name, value): (&String, &f64)) -> (String, f64) {
        let database = format!("datname=\"{}\"", self::scrape().database);
        assert!(name.contains(&database), "{name}");
        let Some((metric, labels)) = name.split_once('{') else { return (name.clone(), *value) };
        let labels: Vec<&str> =
            labels.trim_end_matches('}').split(',').filter(|l| *l != database && !l.starts_with("server=")).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        (format!("{metric}{labels}"), *value)
    }
}

#[test]
fn counters_are_exposed_as_counters_and_the_rest_as_gauges() {
    let mut kinds = BTreeMap::new();
    for line in scrape().text.lines() {
        if let Some((name, kind)) = line.strip_prefix("# TYPE idempotency_").and_then(|l| l.split_once(' ')) {
            let expected = if name.ends_with("_total") { "counter" } else { "gauge" };
            assert_eq!(kind, expected, "{line}");
            kinds.insert(name, kind);
        }
    }
    assert!(kinds.len() >= 16, "{kinds:?}");
}

/// A running exporter; ended when dropped.
struct Exporter {
    process: Child,
    port: u16,
}

impl Exporter {
    fn start(source: &str, databases: &[&str]) -> Exporter {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a free port").port();
        let queries = super::prometheus::monitoring("postgres_exporter/queries.yaml");
        let spawn = |program: &&str| {
            Command::new(program)
                .args([
                    &format!("--web.listen-address=127.0.0.1:{port}"),
                    &format!("--extend.query-path={}", queries.display()),
                    "--auto-discover-databases",
                    &format!("--include-databases={}", databases.join(",")),
                    "--disable-default-metrics",
                    "--disable-settings-metrics",
                ])
                .env("DATA_SOURCE_NAME", source)
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .ok()
        };
        let process = PROGRAMS.iter().find_map(spawn).unwrap_or_else(|| {
            panic!(
                "none of {PROGRAMS:?} is installed, and the queries file cannot be tested without: \
                 apt-get install --no-install-recommends prometheus-postgres-exporter"
            )
        });
        Exporter { process, port }
    }

    fn metrics(&self) -> String {
        let address = ("127.0.0.1", self.port);
        let mut connection = wait_for("the exporter to listen", || TcpStream::connect(address).ok());
        connection.write_all(b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n").expect("a request");
        let mut answer = String::new();
        connection.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.lines().next().is_some_and(|l| l.contains(" 200 ")), "{answer}");
        body.to_owned()
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The samples of Prometheus' text format, with their labels in it sorted by name.
fn parse(text: &str) -> Samples {
    let line = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    text.lines().filter(|l| !l.starts_with('#')).filter_map(line).collect()
}
