//! Links within the documentation: to files of the repository, and to their headings.

use super::{documents, root};
use std::collections::HashSet;
use std::path::Path;

#[test]
fn every_link_within_the_documentation_leads_somewhere() {
    let example = root().join("examples/payments/README.md");
    let mut checked = 0;
    for file in documents().into_iter().chain([example]) {
        let text = std::fs::read_to_string(&file).expect("a document");
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            let (path, heading) = link.split_once('#').unwrap_or((link.as_str(), ""));
            let target = if path.is_empty() { file.clone() } else { file.parent().expect("a folder").join(path) };
            assert!(target.exists(), "{}: there is no {}", file.display(), target.display());
            let is_there = heading.is_empty() || headings(&target).contains(heading);
            assert!(is_there, "{}: {} has no heading #{heading}", file.display(), target.display());
            checked += 1;
        }
    }
    assert!(checked > 30, "only {checked} links were found");
}

/// The targets of `[text](target)` outside of code blocks; the text may go over a line's end.
fn links(markdown: &str) -> Vec<String> {
    let text: String = markdown.split("```").step_by(2).collect();
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// The anchors of a file's headings, as GitHub makes them.
fn headings(file: &Path) -> HashSet<String> {
    let text = std::fs::read_to_string(file).expect("a document");
    let of_headings = text.lines().filter(|line| line.starts_with('#'));
    of_headings.map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}

fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(' ', "-");
    kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, '-' | '_')).collect()
}

#[test]
fn anchors_are_those_of_the_headings() {
    assert_eq!(anchor("What `idem_claim` does, and why"), "what-idem_claim-does-and-why");
    assert_eq!(anchor("An endpoint's name"), "an-endpoints-name");
}
