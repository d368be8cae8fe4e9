//! Every test that the README's tables of traps name is there.

use std::{fs, path::Path};

const README: &str = include_str!("../../README.md");

/// Where tests are, from the root, and the word before their names; this crate's have none.
const SOURCES: [(&str, &str); 8] = [
    ("shared/consumer/src", ""),
    ("shared/consumer/tests", ""),
    ("shared/event/tests", "event"),
    ("shared/operations/tests", "operations"),
    ("services/console/src", "console"),
    ("services/console/tests", "console"),
    ("services/relay/src", "relay"),
    ("tests/chaos", "system::chaos"),
];

/// Module paths of the tests of a file, such as `::harness::one_id_twice`.
fn tests_of(text: &str, module: &str) -> Vec<String> {
    let (mut found, mut test) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        test |= line.starts_with("#[test]") || line.starts_with("#[tokio::test");
        let Some((_, rest)) = line.split_once("fn ") else { continue };
        if let (true, Some((name, _))) = (std::mem::take(&mut test), rest.split_once('(')) {
            found.push(format!("{module}::{name}"));
            // Unit tests at the end of a file.
            found.push(format!("{module}::tests::{name}"));
        }
    }
    found
}

fn collect(folder: &Path, module: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap();
        let inner = match name {
            "it" | "main" | "mod" | "lib" => module.to_owned(),
            name => format!("{module}::{name}"),
        };
        if path.is_dir() {
            collect(&path, &inner, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.extend(tests_of(&fs::read_to_string(&path).unwrap(), &inner));
        }
    }
}

/// What stands in backticks below the headings about traps and looks like the name of a test.
fn named() -> Vec<&'static str> {
    let (_, traps) = README.split_once("\n## Traps").unwrap();
    let (traps, _) = traps.split_once("\n## Figures\n").unwrap();
    let of_a_test = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | ':' | '*');
    let spans = traps.lines().flat_map(|line| line.split('`').skip(1).step_by(2));
    spans.filter(|span| span.contains("::") && span.chars().all(of_a_test)).collect()
}

#[test]
fn every_test_that_the_readme_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let mut there = Vec::new();
    for (folder, module) in SOURCES {
        let module = if module.is_empty() { String::new() } else { format!("::{module}") };
        collect(&root.join(folder), &module, &mut there);
    }
    let is_there = |name: &&str| match name.strip_suffix('*') {
        Some(begin) => there.iter().any(|test| test.contains(&format!("::{begin}"))),
        None => there.iter().any(|test| test.ends_with(&format!("::{name}"))),
    };
    let named = named();
    assert!(named.len() > 100, "only {} names found", named.len());
    let missing: Vec<_> = named.iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "the README names tests that do not exist: {missing:#?}");
}

#[test]
fn every_pitfall_of_the_study_has_its_row() {
    let rows = README.lines().filter_map(|line| line.strip_prefix("| #")?.split_once(' '));
    let numbers: Vec<_> = rows.filter_map(|(number, _)| number.parse::<u32>().ok()).collect();
    assert_eq!(numbers, (1..=55).collect::<Vec<_>>());
}
