//! What can be wrong with a query and with a path.

use serde_json::Value;

use super::client::Request;
use super::schema::{self, field, good};
use super::{Case, Expected, Operation};

/// `name=value`, good.
pub(super) fn pair(description: &Value, parameter: &Value) -> String {
    let value = parameter.get("example").cloned().unwrap_or_else(|| good(description, &parameter["schema"]));
    let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    format!("{}={}", name(parameter), value.replace('+', "%2B"))
}

fn name(parameter: &Value) -> &str {
    parameter["name"].as_str().unwrap_or_default()
}

pub(super) fn cases(operation: &Operation<'_>, base: &Request) -> Vec<Case> {
    let parameters = operation.parameters("query");
    let with = |without: &[&str], more: &str| {
        let others = parameters.iter().filter(|p| p["required"] == true && !without.contains(&name(p)));
        let mut parts: Vec<_> = others.map(|p| pair(operation.description, p)).collect();
        parts.push(more.to_owned());
        base.to(format!("{}?{}", operation.target(&[]), parts.join("&")))
    };
    let case = |what: &str, without: &[&str], more: &str, expected: Expected| Case {
        what: format!("query {what} {}", &more[..more.floor_char_boundary(80)]),
        request: with(without, more),
        expected,
    };
    let named = |name: &str| Expected::Named(vec![format!("/{name}")], String::new());
    let mut cases = Vec::new();
    for parameter in &parameters {
        let name = name(parameter);
        let one = |what: &str, value: &str, expected: Expected| {
            case(what, &[name], &format!("{name}={value}"), expected)
        };
        for wrong in ["%00", "x%00y", "%FF", "%ED%A0%80"] {
            cases.push(one("no text", wrong, named(name)));
        }
        let twice = pair(operation.description, parameter);
        cases.push(case("twice", &[name], &format!("{twice}&{twice}"), named(name)));
        if parameter["required"] == true {
            cases.push(case("without", &[name], "", named(name)));
        }
        cases.extend(
            typed(operation, parameter)
                .into_iter()
                .map(|(what, value, expected)| one(&what, &value, expected)),
        );
        let Some(other) = schema::other_end(name) else { continue };
        let kind = field(operation.description, &parameter["schema"]).kind;
        for (from, to) in schema::reversed(&kind) {
            let expected = Expected::Named(vec![format!("/{name}"), format!("/{other}")], String::new());
            cases.push(case("reversed", &[name, &other], &format!("{name}={from}&{other}={to}"), expected));
        }
    }
    if operation.value["security"].is_array() && !parameters.is_empty() {
        cases.push(case("unknown", &[], "zzz=1", named("zzz")));
        cases.push(case("no name", &[], "=1", named("")));
        cases.push(case("a bad name", &[], "%FF=1", named("")));
    }
    cases
}

/// What is no value of its type.
fn typed(operation: &Operation<'_>, parameter: &Value) -> Vec<(String, String, Expected)> {
    let name = name(parameter);
    let of = field(operation.description, &parameter["schema"]);
    let named = |text: &str| Expected::Named(vec![format!("/{name}")], text.to_owned());
    let mut cases = Vec::new();
    let mut add =
        |what: &str, value: &str, expected| cases.push((what.to_owned(), value.to_owned(), expected));
    if of.kind == "integer" {
        let Some(range) = schema::range(of.schema) else {
            return vec![(
                "an integer without bounds".to_owned(),
                "x".to_owned(),
                named("bounds in the description"),
            )];
        };
        for wrong in schema::no_integers(of.schema) {
            add("out of bounds", &wrong, named(&range));
        }
        for wrong in ["", "x", "0x10", "%2B1", "%201", "1%20", "01", "true", "1,000"] {
            add("no integer", wrong, named(&range));
        }
        for same in [".0", "e0"] {
            let good = good(operation.description, &parameter["schema"]);
            add("an integer otherwise", &format!("{good}{same}"), Expected::Integer);
        }
        return cases;
    }
    if of.kind == "boolean" {
        for wrong in ["", "yes", "1", "TRUE"] {
            add("no boolean", wrong, named(""));
        }
        return cases;
    }
    let empty = if schema::may_be_empty(of.schema) { Expected::Documented } else { named("") };
    add("empty", "", empty);
    match schema::too_long(of.schema) {
        Some(long) => add("over-long", &long, named("")),
        None => add("a text without bounds", "x", named("bounds in the description")),
    }
    if matches!(of.schema["format"].as_str(), Some("uuid" | "date-time")) || of.schema.get("enum").is_some() {
        add("another kind", "x", named(""));
    }
    cases
}

/// A path that is none of an object is 404, or names its part; never more.
pub(super) fn path_cases(operation: &Operation<'_>, base: &Request) -> Vec<Case> {
    let long = "9".repeat(5000);
    let values = [
        "%00",
        "x%00y",
        "%FF",
        "%ED%A0%80",
        "%2F",
        "..%2F..",
        "x",
        "-1",
        "99999999999999999999",
        "%20",
        &long,
    ];
    let mut cases = Vec::new();
    for parameter in operation.parameters("path") {
        for value in values {
            let target = operation.target(&[(name(parameter), value)]);
            let what = format!("path {}", &target[..target.len().min(80)]);
            cases.push(Case { what, request: base.to(target), expected: Expected::Refused });
        }
    }
    cases
}
