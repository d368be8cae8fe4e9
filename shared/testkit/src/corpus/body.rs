//! What can be wrong with a body. Texts and not values: what is wrong may have no value.

use serde_json::Value;

use super::client::Request;
use super::schema::{self, Field, field, good};
use super::{Case, Expected, Operation};

/// A wrong body, or a part of one.
struct Wrong {
    what: String,
    text: String,
    expected: Expected,
}

impl Wrong {
    fn new(what: &str, text: impl Into<String>, expected: Expected) -> Self {
        Self { what: what.to_owned(), text: text.into(), expected }
    }

    /// The same below a member or an element.
    fn below(self, step: &str, around: impl FnOnce(String) -> String) -> Self {
        let expected = match self.expected {
            Expected::Named(pointers, text) => {
                Expected::Named(pointers.iter().map(|pointer| format!("/{step}{pointer}")).collect(), text)
            }
            other => other,
        };
        Self { what: format!("/{step}{}", self.what), text: around(self.text), expected }
    }
}

fn named(text: &str) -> Expected {
    Expected::Named(vec![String::new()], text.to_owned())
}

fn member(name: &str) -> Expected {
    Expected::Named(vec![format!("/{name}")], String::new())
}

pub(super) fn cases(operation: &Operation<'_>, base: &Request) -> Vec<Case> {
    let Some(body) = &operation.body else { return Vec::new() };
    let schema = &operation.value["requestBody"]["content"]["application/json"]["schema"];
    let mut wrong = wrong(operation.description, schema, body);
    for text in ["", " ", "{", "nonsense", "<a/>", "\u{feff}{}", "{}{}", "\"x\"", "7", "[]", "null", "1e400"]
    {
        wrong.push(Wrong::new(" whole", text, Expected::Refused));
    }
    wrong.push(Wrong::new(" whole", "[".repeat(5000), Expected::Refused));
    let mut cases: Vec<_> = wrong
        .into_iter()
        .map(|Wrong { what, text, expected }| Case {
            what: format!("body {what} {}", &text[..text.floor_char_boundary(200)]),
            request: base.clone().body(text),
            expected,
        })
        .collect();
    cases.extend(declared(base));
    cases
}

/// What is said of a body before it is read.
fn declared(base: &Request) -> Vec<Case> {
    let kind = |value: &str| base.clone().without("Content-Type").header("Content-Type", value);
    let mut cases: Vec<_> = [
        ("no kind", base.clone().without("Content-Type")),
        ("another kind", kind("text/plain")),
        ("another charset", kind("application/json; charset=euc-kr")),
        ("UTF-16", kind("application/json;charset=\"utf-16\"")),
        ("two kinds", base.clone().header("Content-Type", "application/json")),
        ("compressed", base.clone().header("Content-Encoding", "gzip")),
        ("compressed twice", base.clone().header("Content-Encoding", "identity, br")),
        ("too large", base.clone().header("Content-Length", "99999999")),
        ("not UTF-8", base.clone().body(&b"{\"\xff\":\"\xff\"}"[..])),
    ]
    .into_iter()
    .map(|(what, request)| Case { what: format!("body {what}"), request, expected: Expected::Refused })
    .collect();
    for (what, request) in [
        ("UTF-8", kind("application/json; charset=UTF-8")),
        ("as it is", base.clone().header("Content-Encoding", "identity")),
    ] {
        cases.push(Case { what: format!("body {what}"), request, expected: Expected::Documented });
    }
    cases
}

/// Everything that is wrong instead of `base`, or in it.
fn wrong(description: &Value, schema: &Value, base: &Value) -> Vec<Wrong> {
    let of = field(description, schema);
    let mut all = match of.kind.as_str() {
        "object" => return object(description, &of, base),
        "array" => array(description, &of, base),
        "string" => text(&of, base),
        "integer" => integer(&of, base),
        "boolean" => vec![Wrong::new(" type", "\"true\"", named("")), Wrong::new(" type", "1", named(""))],
        _ => return Vec::new(),
    };
    all.push(Wrong::new(" type", "{\"x\":1}", named("")));
    if !of.nullable {
        all.push(Wrong::new(" null", "null", named("")));
    }
    all
}

fn text(of: &Field<'_>, base: &Value) -> Vec<Wrong> {
    let mut all = vec![];
    for text in [r#""\u0000""#, r#""a\u0000b""#, r#""\ud800""#, r#""\udc00x""#, r#""\ud800\u0041""#] {
        all.push(Wrong::new(" no text", text, named("")));
    }
    for other in ["7", "1e400", "true", "[]"] {
        all.push(Wrong::new(" type", other, named("")));
    }
    all.push(Wrong::new(
        " empty",
        "\"\"",
        if schema::may_be_empty(of.schema) { Expected::Documented } else { named("") },
    ));
    match schema::too_long(of.schema) {
        Some(long) => all.push(Wrong::new(" over-long", format!("\"{long}\""), named(""))),
        // As long as the body may be.
        None if schema::may_be_empty(of.schema) => {}
        None => all.push(Wrong::new(
            " a text without bounds",
            base.to_string(),
            named("bounds in the description"),
        )),
    }
    all
}

fn integer(of: &Field<'_>, base: &Value) -> Vec<Wrong> {
    let Some(range) = schema::range(of.schema) else {
        return vec![Wrong::new(
            " an integer without bounds",
            base.to_string(),
            named("bounds in the description"),
        )];
    };
    let wrong = schema::no_integers(of.schema).into_iter();
    let other = ["\"1\"", "\"\"", "true", "[]"].map(str::to_owned);
    let mut all: Vec<_> =
        wrong.chain(other).map(|text| Wrong::new(" integer", text, named(&range))).collect();
    for same in [".0", "e0"] {
        all.push(Wrong::new(" an integer otherwise", format!("{base}{same}"), Expected::Integer));
    }
    all
}

fn array(description: &Value, of: &Field<'_>, base: &Value) -> Vec<Wrong> {
    let mut all = vec![Wrong::new(" type", "\"x\"", named("")), Wrong::new(" type", "7", named(""))];
    let first = base.get(0).cloned().unwrap_or_else(|| good(description, &of.schema["items"]));
    for wrong in wrong(description, &of.schema["items"], &first) {
        all.push(wrong.below("0", |text| format!("[{text}]")));
    }
    match of.schema["maxItems"].as_u64() {
        Some(most) => {
            let many = vec![first.to_string(); usize::try_from(most).unwrap_or_default() + 1].join(",");
            all.push(Wrong::new(" many", format!("[{many}]"), named("")));
        }
        None => all.push(Wrong::new(" a list without bounds", "[]", named("bounds in the description"))),
    }
    all
}

fn object(description: &Value, of: &Field<'_>, base: &Value) -> Vec<Wrong> {
    let mut all = vec![Wrong::new(" type", "\"x\"", named("")), Wrong::new(" type", "[]", named(""))];
    let Some(properties) = of.schema["properties"].as_object() else { return Vec::new() };
    all.push(Wrong::new(" unknown", around(base, "zzz", "1"), member("zzz")));
    for (name, property) in properties {
        let value = base.get(name).cloned().unwrap_or_else(|| good(description, property));
        for wrong in wrong(description, property, &value) {
            all.push(wrong.below(name, |text| around(base, name, &text)));
        }
        let twice = format!("{value},{}:{value}", Value::from(name.as_str()));
        all.push(Wrong::new(&format!("/{name} twice"), around(base, name, &twice), member(name)));
        if of.schema["required"].as_array().is_some_and(|list| list.iter().any(|one| one == name)) {
            let mut without = base.clone();
            without.as_object_mut().and_then(|object| object.remove(name));
            all.push(Wrong::new(&format!("/{name} missing"), without.to_string(), member(name)));
        }
        let Some(other) = schema::other_end(name).filter(|other| properties.contains_key(other)) else {
            continue;
        };
        let kind = field(description, property).kind;
        for (from, to) in schema::reversed(&kind) {
            let quoted =
                |text: &str| if kind == "integer" { text.to_owned() } else { Value::from(text).to_string() };
            let ends = format!("{},{}:{}", quoted(from), Value::from(other.as_str()), quoted(to));
            let expected = Expected::Named(vec![format!("/{name}"), format!("/{other}")], String::new());
            all.push(Wrong::new(&format!("/{name} reversed"), around(base, name, &ends), expected));
        }
    }
    all
}

/// The object with this text as a member.
fn around(base: &Value, name: &str, text: &str) -> String {
    let others = base.as_object().into_iter().flatten().filter(|(other, _)| *other != name);
    let others = others.map(|(other, value)| format!("{}:{value}", Value::from(other.as_str())));
    let changed = format!("{}:{text}", Value::from(name));
    format!("{{{}}}", others.chain([changed]).collect::<Vec<_>>().join(","))
}
