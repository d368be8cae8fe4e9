//! What may change from one schema of a topic to the next: so that old and new readers read old and new bytes.

use std::collections::BTreeMap;

use serde_json::Value;

use super::schema::{PRIMITIVES, full_name};

/// Refuses a `newer` schema that some reader or writer of `older` could not live with. Stricter than Avro: the type
/// of a field never changes, because Java's fingerprint does not see logical types (micros turned into millis would
/// be read as micros) and because a widened number cannot be read back by the old reader.
pub(super) fn check(older: &Value, newer: &Value) -> Result<(), String> {
    let (older, newer) = (records(older), records(newer));
    for (record, new_fields) in &newer {
        let Some(old_fields) = older.get(record) else { continue };
        for (field, new) in new_fields {
            match old_fields.get(field) {
                Some(old) if old.shape != new.shape => {
                    return Err(format!("{record}.{field}: the type changed; add a new field instead"));
                }
                None if !new.has_default => {
                    return Err(format!("{record}.{field}: a new field needs a default"));
                }
                _ => {}
            }
        }
        for (field, old) in old_fields {
            if new_fields.contains_key(field) {
                continue;
            }
            if !old.has_default {
                return Err(format!("{record}.{field}: removed, but old readers have no default for it"));
            }
            if !can_be_skipped(&old.shape) {
                return Err(format!(
                    "{record}.{field}: removed, but this library cannot skip records and enums"
                ));
            }
        }
    }
    Ok(())
}

/// apache-avro 0.22 reads a field that the struct does not have only when no record or enum is in it.
fn can_be_skipped(shape: &Value) -> bool {
    match shape {
        Value::String(name) => PRIMITIVES.contains(&name.as_str()),
        Value::Array(branches) => branches.iter().all(can_be_skipped),
        _ if shape["type"] == "array" => can_be_skipped(&shape["items"]),
        _ if shape["type"] == "map" => can_be_skipped(&shape["values"]),
        _ => shape["type"] != "enum",
    }
}

struct Field {
    /// The type without docs, records by name only.
    shape: Value,
    has_default: bool,
}

type Records = BTreeMap<String, BTreeMap<String, Field>>;

fn records(schema: &Value) -> Records {
    let mut found = Records::new();
    shape(schema, "", &mut found);
    found
}

/// Reduces a type to what must not change, and collects the records defined in it.
fn shape(schema: &Value, namespace: &str, found: &mut Records) -> Value {
    match schema {
        Value::String(name) if PRIMITIVES.contains(&name.as_str()) => schema.clone(),
        Value::String(name) => full_name(name, namespace).into(),
        Value::Array(branches) => branches.iter().map(|branch| shape(branch, namespace, found)).collect(),
        Value::Object(object) if schema["type"] == "record" => {
            let namespace = schema["namespace"].as_str().unwrap_or(namespace);
            let full = full_name(schema["name"].as_str().unwrap_or_default(), namespace);
            let namespace = full.rsplit_once('.').map_or("", |(before, _)| before);
            let mut fields = BTreeMap::new();
            for field in object.get("fields").and_then(Value::as_array).into_iter().flatten() {
                let shape = shape(&field["type"], namespace, found);
                let name = field["name"].as_str().unwrap_or_default().to_owned();
                fields.insert(name, Field { shape, has_default: field.get("default").is_some() });
            }
            found.insert(full.clone(), fields);
            full.into()
        }
        Value::Object(object) => {
            let mut object = object.clone();
            object.remove("doc");
            for key in ["type", "items", "values"] {
                if let Some(inner) = object.get_mut(key) {
                    let named = key == "type" && inner.is_string();
                    if !named {
                        *inner = shape(inner, namespace, found);
                    }
                }
            }
            Value::Object(object)
        }
        other => other.clone(),
    }
}
