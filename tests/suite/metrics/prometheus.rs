//! The alert rules and the dashboard: valid, and on metrics that exist.

use super::exporter::scrape;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file under `monitoring/`.
pub fn monitoring(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the repository").join("monitoring").join(file)
}

fn text(file: &str) -> String {
    std::fs::read_to_string(monitoring(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

fn promtool(args: &[&str], file: &Path) {
    let output = Command::new("promtool").args(args).arg(file).output().unwrap_or_else(|e| {
        panic!(
            "promtool cannot be run ({e}), and the rules cannot be tested without: \
             apt-get install --no-install-recommends prometheus"
        )
    });
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

#[test]
fn alert_rules_are_valid_and_fire_when_they_should() {
    promtool(&["check", "rules"], &monitoring("prometheus/alerts.yaml"));
    promtool(&["test", "rules"], &monitoring("prometheus/alerts_test.yaml"));
}

#[test]
fn each_alert_has_a_unit_test_in_which_it_fires() {
    let tests = text("prometheus/alerts_test.yaml");
    let alerts = text("prometheus/alerts.yaml");
    let names: Vec<&str> = alerts.lines().filter_map(|l| l.trim().strip_prefix("- alert: ")).collect();
    assert!(names.len() >= 6, "{names:?}");
    for name in names {
        let fires = [format!("alertname: {name}\n        exp_alerts:"), format!("alertname: {name}, exp_alerts:")];
        assert!(fires.iter().any(|f| tests.contains(f)), "{name}");
    }
}

#[test]
fn alerts_are_on_metrics_that_the_exporter_exposes() {
    all_are_exposed(&text("prometheus/alerts.yaml"));
}

#[test]
fn the_dashboard_is_valid_and_on_metrics_that_the_exporter_exposes() {
    let dashboard: Value = serde_json::from_str(&text("grafana/dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let mut rules = String::from("groups:\n  - name: dashboard\n    rules:\n");
    let mut ids = BTreeSet::new();
    for panel in panels {
        assert!(ids.insert(panel["id"].as_u64()), "two panels with one id: {}", panel["title"]);
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
        for target in panel["targets"].as_array().expect("targets") {
            assert_eq!(target["datasource"]["uid"], "${datasource}", "{}", panel["title"]);
            let expression = target["expr"].as_str().expect("an expression");
            all_are_exposed(expression);
            let plain =
                expression.replace("$__rate_interval", "5m").replace("$datname", ".*").replace("$endpoint", ".*");
            assert!(!plain.contains('$'), "a variable that the dashboard does not have: {plain}");
            rules += &format!("      - record: panel\n        expr: {}\n", Value::from(plain));
        }
    }
    let file = tempfile::Builder::new().suffix(".yaml").tempfile().expect("a rules file");
    std::fs::write(file.path(), rules).expect("the rules");
    promtool(&["check", "rules", "--lint=none"], file.path());

    let variables: Vec<&Value> = dashboard["templating"]["list"].as_array().expect("variables").iter().collect();
    let names: Vec<&str> = variables.iter().filter_map(|v| v["name"].as_str()).collect();
    assert_eq!(names, ["datasource", "datname", "endpoint"]);
    let shown: Vec<&str> = panels.iter().filter_map(|p| p["title"].as_str()).collect();
    for title in [
        "Arrivals by outcome",
        "Replay rate",
        "Open and stuck claims",
        "Sweep lag",
        "Size of the key store",
        "Last round",
    ] {
        assert!(shown.contains(&title), "{title} in {shown:?}");
    }
}

fn all_are_exposed(expressions: &str) {
    let exposed: BTreeSet<&str> =
        scrape().samples.keys().map(|name| name.split('{').next().unwrap_or_default()).collect();
    let words = expressions.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    let used: BTreeSet<&str> =
        words.filter(|w| w.starts_with("idempotency_") && *w != "idempotency_enforcer").collect();
    assert!(!used.is_empty(), "no metric in {expressions}");
    for metric in used {
        assert!(exposed.contains(metric), "{metric} is not among {exposed:?}");
    }
}
