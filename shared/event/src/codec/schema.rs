//! Rules for schemas, and the fingerprint that Java computes too.

use apache_avro::{Schema, rabin::Rabin};
use serde_json::Value;

pub(super) const PRIMITIVES: [&str; 8] =
    ["null", "boolean", "int", "long", "float", "double", "bytes", "string"];

/// The problem, and where it is.
type Check = Result<(), String>;

/// Refuses what decodes wrongly or without bound with this Avro library (see the crate's README).
pub(super) fn check(schema: &Value) -> Check {
    if schema["type"] != "record" {
        return Err("the top is not a record".into());
    }
    Lint::default().of_type(schema, "", "")
}

#[derive(Default)]
struct Lint {
    /// Named types being defined around the current place.
    open: Vec<String>,
}

impl Lint {
    /// `place` names record and field, `namespace` is the enclosing one.
    fn of_type(&mut self, schema: &Value, namespace: &str, place: &str) -> Check {
        match schema {
            Value::String(name) if self.open.contains(&full_name(name, namespace)) => {
                Err(format!("{place}: recursive type {name}"))
            }
            Value::String(_) => Ok(()),
            Value::Array(branches) => self.of_union(branches, namespace, place),
            Value::Object(object) => {
                if object.contains_key("aliases") {
                    return Err(format!("{place}: aliases are not applied when reading"));
                }
                match schema["type"].as_str() {
                    Some("record") => self.of_record(schema, namespace, place),
                    Some("array") => self.of_items(&schema["items"], namespace, place),
                    Some("map") => self.of_items(&schema["values"], namespace, place),
                    Some("error") => Err(format!("{place}: error type")),
                    Some(_) => Ok(()),
                    None => self.of_type(&schema["type"], namespace, place),
                }
            }
            _ => Err(format!("{place}: not a type: {schema}")),
        }
    }

    fn of_union(&mut self, branches: &[Value], namespace: &str, place: &str) -> Check {
        match branches {
            [Value::String(null), some] if null == "null" => self.of_type(some, namespace, place),
            _ => Err(format!("{place}: a union must be null and one other type, null first")),
        }
    }

    /// Items of zero bytes would let a few bytes announce millions of them.
    fn of_items(&mut self, items: &Value, namespace: &str, place: &str) -> Check {
        if is_zero_width(items) {
            return Err(format!("{place}: items that take no bytes"));
        }
        self.of_type(items, namespace, place)
    }

    fn of_record(&mut self, record: &Value, namespace: &str, place: &str) -> Check {
        let name = record["name"].as_str().ok_or_else(|| format!("{place}: record without a name"))?;
        let namespace = record["namespace"].as_str().unwrap_or(namespace);
        let full = full_name(name, namespace);
        let namespace = full.rsplit_once('.').map_or("", |(before, _)| before).to_owned();
        if self.open.contains(&full) {
            return Err(format!("{place}: recursive type {full}"));
        }
        self.open.push(full.clone());
        for field in record["fields"].as_array().into_iter().flatten() {
            self.of_field(field, &namespace, &full)?;
        }
        self.open.pop();
        Ok(())
    }

    fn of_field(&mut self, field: &Value, namespace: &str, record: &str) -> Check {
        let place = format!("{record}.{}", field["name"].as_str().unwrap_or("?"));
        for forbidden in ["aliases", "order"] {
            if field.get(forbidden).is_some() {
                return Err(format!("{place}: {forbidden} must not be used"));
            }
        }
        let default = field.get("default");
        if field["type"].is_array() && default != Some(&Value::Null) {
            return Err(format!("{place}: an optional field needs the default null"));
        }
        if default.is_some_and(|value| !value.is_null()) && holds_bytes(&field["type"]) {
            return Err(format!("{place}: bytes must have no default"));
        }
        self.of_type(&field["type"], namespace, &place)
    }
}

pub(super) fn full_name(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() { name.to_owned() } else { format!("{namespace}.{name}") }
}

fn is_zero_width(schema: &Value) -> bool {
    match (schema, &schema["type"]) {
        (Value::String(name), _) => name == "null",
        (_, Value::String(kind)) if kind == "record" => {
            schema["fields"].as_array().is_none_or(|fields| fields.iter().all(|f| is_zero_width(&f["type"])))
        }
        (_, Value::String(kind)) if kind == "fixed" => schema["size"] == 0,
        (_, Value::String(kind)) => kind == "null",
        (_, Value::Object(_)) => is_zero_width(&schema["type"]),
        _ => false,
    }
}

fn holds_bytes(schema: &Value) -> bool {
    match schema {
        Value::String(kind) => kind == "bytes" || kind == "fixed",
        Value::Array(branches) => branches.iter().any(holds_bytes),
        Value::Object(object) => {
            let fields = object.get("fields").and_then(Value::as_array).into_iter().flatten();
            ["type", "items", "values"].iter().filter_map(|key| object.get(*key)).any(holds_bytes)
                || fields.into_iter().any(|field| holds_bytes(&field["type"]))
        }
        _ => false,
    }
}

/// CRC-64-AVRO of the parsing canonical form as Java and fastavro write it. The Rust library keeps
/// `{"type":"string"}` where a logical type stood; Java writes `"string"`: so logical types are folded away first.
pub(super) fn fingerprint(schema: &Value) -> Result<u64, String> {
    let folded = Schema::parse(&fold(schema)).map_err(|error| error.to_string())?;
    let bytes = folded.fingerprint::<Rabin>().bytes;
    let bytes =
        <[u8; 8]>::try_from(bytes).map_err(|bytes| format!("fingerprint of {} bytes", bytes.len()))?;
    Ok(u64::from_le_bytes(bytes))
}

fn fold(schema: &Value) -> Value {
    match schema {
        Value::Array(branches) => branches.iter().map(fold).collect(),
        Value::Object(object) => match object.get("type") {
            Some(Value::String(kind)) if PRIMITIVES.contains(&kind.as_str()) => Value::from(kind.as_str()),
            Some(inner @ (Value::Object(_) | Value::Array(_))) => fold(inner),
            _ => {
                let mut object = object.clone();
                object.remove("logicalType");
                for key in ["items", "values"] {
                    if let Some(inner) = object.get_mut(key) {
                        *inner = fold(inner);
                    }
                }
                for field in object.get_mut("fields").and_then(Value::as_array_mut).into_iter().flatten() {
                    field["type"] = fold(&field["type"]);
                }
                Value::Object(object)
            }
        },
        other => other.clone(),
    }
}
