//! Schemas of the description, and values that fit them.

use serde_json::{Map, Value, json};

use super::ID;

/// What a field may be.
#[derive(Debug, Clone)]
pub(super) struct Field<'a> {
    /// `string`, `integer`, …; empty where anything may be.
    pub(super) kind: String,
    pub(super) nullable: bool,
    /// The schema itself, behind references and without null.
    pub(super) schema: &'a Value,
}

/// Behind references, and the part that is not null.
pub(super) fn field<'a>(description: &'a Value, schema: &'a Value) -> Field<'a> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = description.pointer(reference.trim_start_matches('#'));
        return field(description, target.unwrap_or_else(|| panic!("{reference} is not there")));
    }
    for list in ["oneOf", "anyOf", "allOf"] {
        let Some(options) = schema[list].as_array() else { continue };
        let is_null = |option: &&Value| option["type"] == "null";
        if let Some(option) = options.iter().find(|option| !is_null(option)) {
            let nullable = options.iter().any(|option| is_null(&option));
            let found = field(description, option);
            return Field { nullable: nullable || found.nullable, ..found };
        }
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::String(kind) => vec![kind],
        Value::Array(kinds) => kinds.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let kind = kinds.iter().find(|kind| **kind != "null").map(|kind| (*kind).to_owned());
    Field { kind: kind.unwrap_or_default(), nullable: kinds.contains(&"null"), schema }
}

/// A value that fits; of an object only what it must have.
pub(super) fn good(description: &Value, schema: &Value) -> Value {
    let field = field(description, schema);
    let of = field.schema;
    for given in ["example", "default", "const"] {
        if let Some(value) = of.get(given).or_else(|| schema.get(given)).filter(|value| !value.is_null()) {
            return value.clone();
        }
    }
    if let Some(value) = of["enum"].get(0) {
        return value.clone();
    }
    match field.kind.as_str() {
        "string" => match of["format"].as_str() {
            Some("uuid") => json!(ID),
            Some("date-time") => json!("2026-01-31T00:00:00Z"),
            _ => {
                json!("x".repeat(usize::try_from(of["minLength"].as_u64().unwrap_or(1).max(1)).unwrap_or(1)))
            }
        },
        "integer" | "number" => of.get("minimum").cloned().unwrap_or_else(|| json!(1)),
        "boolean" => json!(false),
        "array" => json!([good(description, &of["items"])]),
        "object" => {
            let required = of["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let member = |name: &str| (name.to_owned(), good(description, &of["properties"][name]));
            Value::Object(required.map(member).collect::<Map<_, _>>())
        }
        _ => Value::Null,
    }
}

/// What an integer is told, from its bounds; `None`: it has none.
pub(super) fn range(schema: &Value) -> Option<String> {
    let (least, most) = (schema["minimum"].as_i64()?, schema["maximum"].as_i64()?);
    Some(format!("must be an integer from {least} to {most}"))
}

/// Integers that are out of the bounds, or none.
pub(super) fn no_integers(schema: &Value) -> Vec<String> {
    let mut wrong = vec!["1.5".to_owned(), "1e400".to_owned(), "-1e400".to_owned(), "1e30".to_owned()];
    let bound = |name: &str| schema[name].as_i64().map(i128::from);
    wrong.extend(bound("minimum").map(|least| (least - 1).to_string()));
    wrong.extend(bound("maximum").map(|most| (most + 1).to_string()));
    wrong.push((i128::from(i64::MIN) - 1).to_string());
    wrong.push(u64::MAX.to_string());
    wrong
}

/// A text that is longer than it may be; `None`: there is no bound.
pub(super) fn too_long(schema: &Value) -> Option<String> {
    if let Some(most) = schema["maxLength"].as_u64() {
        return Some("x".repeat(usize::try_from(most).ok()? + 1));
    }
    let bounded = ["pattern", "format", "enum", "const"].iter().any(|name| schema.get(name).is_some());
    bounded.then(|| "x".repeat(5000))
}

/// Whether an empty text has a meaning: the description says so.
pub(super) fn may_be_empty(schema: &Value) -> bool {
    schema["minLength"].as_u64() == Some(0)
}

/// The other end of a range, by name: `since` and `until`, `…From` and `…To`, `min_…` and `max_…`.
pub(super) fn other_end(name: &str) -> Option<String> {
    match name {
        "since" => Some("until".to_owned()),
        _ => name
            .strip_prefix("min_")
            .map(|rest| format!("max_{rest}"))
            .or_else(|| name.strip_suffix("From").map(|start| format!("{start}To"))),
    }
}

/// Both ends of ranges that hold nothing; of times also of one that is empty.
pub(super) fn reversed(kind: &str) -> Vec<(&'static str, &'static str)> {
    let (early, late) = ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z");
    if kind == "integer" { vec![("5", "4")] } else { vec![(late, early), (early, early)] }
}
