//! Dependencies between our crates run one way, as the design draws them.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// What a crate may depend on; its development dependencies may be `testkit` as well.
fn allowed() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    let service = [
        "waybill-event",
        "waybill-outbox",
        "waybill-consumer",
        "waybill-operations",
        "waybill-service",
        "waybill-task",
    ];
    let anything = [&service[..], &["waybill-testkit"]].concat();
    [
        ("waybill-event", &[][..]),
        ("waybill-outbox", &["waybill-event"]),
        ("waybill-consumer", &["waybill-event"]),
        ("waybill-task", &["waybill-event"]),
        ("waybill-service", &[]),
        ("waybill-operations", &["waybill-consumer", "waybill-task", "waybill-service"]),
        ("waybill-testkit", &anything),
        ("waybill-order", &service),
        ("waybill-relay", &service),
        ("waybill-point", &service),
        ("waybill-notification", &service),
        ("waybill-console", &service),
        ("waybill-tests", &anything),
        ("waybill-dev", &[]),
    ]
    .into_iter()
    .map(|(name, may)| (name, may.iter().copied().collect()))
    .collect()
}

/// Development dependencies besides the testkit: the job runner's table is the outbox's, and values to be decoded are
/// events.
const FOR_TESTS: [(&str, &str); 2] =
    [("waybill-service", "waybill-outbox"), ("waybill-operations", "waybill-event")];

/// Libraries that a crate must not link: the light tool no clients, writers of events no Kafka, contracts no I/O.
const FORBIDDEN: [(&str, &[&str]); 6] = [
    ("waybill-dev", &["rdkafka", "sqlx", "tokio", "axum"]),
    ("waybill-outbox", &["rdkafka", "axum"]),
    ("waybill-event", &["rdkafka", "sqlx", "tokio", "axum"]),
    ("waybill-consumer", &["axum"]),
    ("waybill-task", &["rdkafka", "axum"]),
    ("waybill-service", &["rdkafka"]),
];

/// A crate that is built alone, as for an image, links the same librdkafka as the whole workspace in its tests: all take
/// it from one place, and Cargo's profiles change no features.
#[test]
fn one_set_of_features_for_librdkafka() {
    let metadata = metadata();
    let packages = metadata["packages"].as_array().expect("packages");
    let mut uses = 0;
    for package in packages {
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            if dependency["name"] == "rdkafka" {
                uses += 1;
                let features: BTreeSet<_> = dependency["features"]
                    .as_array()
                    .expect("features")
                    .iter()
                    .filter_map(Value::as_str)
                    .collect();
                let wanted = BTreeSet::from(["tokio", "tracing", "libz-static", "zstd"]);
                let plain = dependency["uses_default_features"] == false && dependency["optional"] == false;
                assert!(features == wanted && plain, "{}: {dependency}", package["name"]);
            }
        }
    }
    assert!(uses >= 5, "{uses} crates use it");
}

fn metadata() -> Value {
    let root = waybill_tests::system::root().expect("root");
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline", "--locked"])
        .current_dir(root)
        .output()
        .expect("cargo metadata runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("metadata is JSON")
}

/// Every arrow that the design does not draw.
fn wrong_arrows(metadata: &Value) -> Vec<String> {
    let allowed = allowed();
    let mut wrong = Vec::new();
    for package in metadata["packages"].as_array().expect("packages") {
        let name = package["name"].as_str().expect("name");
        let Some(may) = allowed.get(name) else {
            wrong.push(format!("{name} is not in the design"));
            continue;
        };
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let to = dependency["name"].as_str().expect("name");
            let development = dependency["kind"] == "dev";
            let ours = to.starts_with("waybill-");
            let for_tests = development && (to == "waybill-testkit" || FOR_TESTS.contains(&(name, to)));
            if ours && !may.contains(to) && !for_tests {
                wrong.push(format!("{name} -> {to}"));
            }
            let forbidden =
                FORBIDDEN.iter().any(|(from, libraries)| *from == name && libraries.contains(&to));
            if forbidden && !development {
                wrong.push(format!("{name} -> {to}"));
            }
        }
    }
    wrong
}

#[test]
fn dependencies_run_as_the_design_draws_them() {
    assert_eq!(wrong_arrows(&metadata()), Vec::<String>::new());
}

#[test]
fn any_other_arrow_is_refused() {
    for (from, to, kind) in [
        ("waybill-order", "waybill-point", Value::Null),
        ("waybill-event", "waybill-outbox", Value::Null),
        ("waybill-outbox", "rdkafka", Value::Null),
        ("waybill-service", "waybill-event", Value::Null),
        ("waybill-consumer", "waybill-outbox", "dev".into()),
        ("waybill-new", "serde", Value::Null),
    ] {
        let planted = serde_json::json!({ "packages": [{ "name": from, "dependencies": [{ "name": to, "kind": kind }] }] });
        assert_eq!(wrong_arrows(&planted).len(), 1, "{from} -> {to} passes");
    }
}
