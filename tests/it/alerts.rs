//! The alert rules name what there is: metrics of the page, sections of the runbook, and tests for each.

use std::collections::BTreeSet;
use std::path::Path;

/// What an expression is made of besides metrics.
const LANGUAGE: &str = "absent and by increase last_over_time max max_over_time min offset on or rate sum time unless \
    exported_job group job kind messaging_consumer_group_name messaging_destination_name \
    messaging_destination_partition_id reason source topic";

struct Alert {
    name: String,
    text: String,
}

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/prometheus").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The alerts of the file, without comments.
fn alerts() -> Vec<Alert> {
    let text: Vec<_> = read("alerts.yml")
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .map(str::to_owned)
        .collect();
    let text = text.join("\n");
    let alerts = text.split("- alert: ").skip(1);
    alerts
        .map(|alert| {
            let (name, text) = alert.split_once('\n').expect("a rule under the name");
            Alert { name: name.trim().to_owned(), text: text.to_owned() }
        })
        .collect()
}

impl Alert {
    fn field(&self, name: &str) -> Option<&str> {
        let lines = self.text.lines().map(str::trim_start);
        lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).next()
    }

    /// Its expression, on one line or in a block.
    fn expression(&self) -> String {
        let lines = self.text.lines().skip_while(|line| !line.starts_with("        expr:"));
        let block = lines.enumerate().take_while(|(at, line)| *at == 0 || line.starts_with("          "));
        block.map(|(_, line)| line.trim_start().trim_start_matches("expr:")).collect::<Vec<_>>().join(" ")
    }

    /// Names in the expression that are neither labels in braces, durations, nor words of the language.
    fn metrics(&self) -> BTreeSet<String> {
        let (mut plain, mut depth) = (String::new(), 0);
        for c in self.expression().chars() {
            match c {
                '{' | '[' => depth += 1,
                '}' | ']' => depth -= 1,
                c if depth == 0 => plain.push(c),
                _ => {}
            }
        }
        let words = plain.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let words = words.filter(|word| word.starts_with(|c: char| c.is_ascii_alphabetic()));
        words.filter(|word| LANGUAGE.split(' ').all(|known| known != *word)).map(str::to_owned).collect()
    }
}

/// As GitHub makes them.
fn anchor(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

fn sections(page: &str) -> BTreeSet<String> {
    page.lines().filter_map(|line| line.strip_prefix("## ")).map(anchor).collect()
}

#[test]
fn every_metric_of_a_rule_is_on_the_page() {
    let page = read("METRICS.md");
    let mut documented: BTreeSet<_> =
        page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    // Prometheus' own.
    documented.insert("up");
    let alerts = alerts();
    assert!(alerts.len() > 20, "only {} alerts were read", alerts.len());
    for alert in alerts {
        let metrics = alert.metrics();
        assert!(!metrics.is_empty(), "{}: no metric in {:?}", alert.name, alert.expression());
        for metric in metrics {
            let parts = ["_bucket", "_count", "_sum"];
            let name = parts.iter().find_map(|part| metric.strip_suffix(part)).unwrap_or(&metric);
            assert!(documented.contains(name), "{}: {name} is not in METRICS.md", alert.name);
        }
    }
}

#[test]
fn every_alert_leads_to_its_section_of_the_runbook() {
    let page = read("RUNBOOK.md");
    let sections = sections(&page);
    for alert in alerts() {
        let url = alert.field("runbook_url").unwrap_or_else(|| panic!("{} has no runbook_url", alert.name));
        let section = url.strip_prefix("deploy/prometheus/RUNBOOK.md#").unwrap_or_else(|| panic!("{url}"));
        assert!(sections.contains(section), "{}: RUNBOOK.md has no section {section}", alert.name);
        let severity = alert.field("labels").unwrap_or_default();
        let known = ["{ severity: page }", "{ severity: ticket }"];
        assert!(known.contains(&severity), "{}: severity {severity:?}", alert.name);
    }
    // The page's own links.
    for link in page.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
        assert!(sections.contains(link), "RUNBOOK.md has no section {link}");
    }
}

#[test]
fn every_alert_is_tested_firing_and_silent() {
    let tests = read("alerts_test.yml");
    // A list in a rule's test is followed by its alerts, by none, or by a name for alerts that stand elsewhere.
    let named = |name: &str, ends: fn(&str) -> bool| {
        let uses = tests.split("alertname: ").skip(1).filter_map(|rest| rest.strip_prefix(name));
        uses.filter_map(|rest| rest.split_once("exp_alerts:")).any(|(before, after)| {
            before.trim_matches([',', ' ', '\n']).is_empty() && ends(after.trim_start())
        })
    };
    for alert in alerts() {
        assert!(named(&alert.name, |after| !after.starts_with("[]")), "{} never fires in a test", alert.name);
        let silent = named(&alert.name, |after| after.starts_with("[]"));
        assert!(silent, "{} is never silent in a test", alert.name);
    }
}
