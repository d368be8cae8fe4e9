//! The README's snippets are parts of the examples, and its names are names of something.

use crate::root;

/// The README.
pub(crate) const TEXT: &str = include_str!("../../README.md");

/// The fenced blocks of a language below a heading, up to the next heading of any depth.
pub(crate) fn blocks(heading: &str, language: &str) -> Vec<String> {
    let section = TEXT.split(&format!("\n{heading}\n")).nth(1).unwrap_or_else(|| panic!("no {heading}"));
    let section = section.split("\n## ").next().and_then(|s| s.split("\n### ").next()).expect("section");
    fenced(section, language)
}

fn fenced(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    text.split(&fence).skip(1).map(|part| part.split("```").next().expect("a block").to_owned()).collect()
}

/// Whatever its indentation.
fn lines(text: &str) -> String {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

#[test]
fn every_snippet_is_a_part_of_an_example() {
    let examples: Vec<String> =
        ["invoices/mod.rs", "publish.rs", "fused.rs", "append.sql", "python/append.py"]
            .iter()
            .map(|file| lines(&read(&format!("shared/outbox/examples/{file}"))))
            .collect();
    let mut found = 0;
    for language in ["rust", "sql", "python"] {
        for block in fenced(TEXT, language).iter().filter(|block| !block.starts_with("grant ")) {
            assert!(
                examples.iter().any(|example| example.contains(&lines(block))),
                "no example has\n{block}"
            );
            found += 1;
        }
    }
    assert_eq!(found, 5);
}

#[test]
fn every_link_and_every_named_test_exists() {
    for link in TEXT.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
        match link.strip_prefix('#') {
            Some(anchor) => {
                let headings = TEXT.lines().filter_map(|line| line.trim_start_matches('#').strip_prefix(' '));
                let known = headings.map(|h| h.to_lowercase().replace(' ', "-")).any(|h| h == anchor);
                assert!(known, "#{anchor}");
            }
            None => assert!(root().join("shared/outbox").join(link).exists(), "{link}"),
        }
    }
    // What CI is said to say, where it is said.
    let gate = read("shared/event/tests/it/history.rs");
    for name in [
        "every_history_file_is_embedded_in_order",
        "old_and_new_orders_read_each_other",
        "every_field_of_the_current_schemas_has_a_doc",
        "every_topic_with_a_schema_has_an_event_type",
    ] {
        assert!(TEXT.contains(name) && gate.contains(&format!("fn {name}()")), "{name}");
    }
    for message in ["avsc changed: add schemas/history/", " is not as it was published"] {
        assert!(TEXT.contains(message) && gate.contains(message), "{message}");
    }
}
