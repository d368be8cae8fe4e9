//! Schemas that are refused, and that the refusal names the schema and the field.

use waybill_event::Codec;

fn record(fields: &str) -> String {
    format!(r#"{{"type":"record","name":"R","namespace":"n","fields":[{fields}]}}"#)
}

fn refusal(schemas: &[&str]) -> String {
    Codec::new("t.v1", schemas).err().map_or_else(|| "accepted".into(), |error| error.to_string())
}

const ID: &str = r#"{"name":"id","type":"string"}"#;

#[test]
fn a_single_schema_by_the_rules() {
    for (fields, problem) in [
        (r#"{"name":"a","type":"long","aliases":["b"]}"#, "n.R.a: aliases must not be used"),
        (r#"{"name":"a","type":"long","order":"ignore"}"#, "n.R.a: order must not be used"),
        (
            r#"{"name":"a","type":{"type":"fixed","name":"F","size":4,"aliases":["G"]}}"#,
            "n.R.a: aliases are not",
        ),
        (r#"{"name":"a","type":"bytes","default":"\u00ff"}"#, "n.R.a: bytes must have no default"),
        (
            r#"{"name":"a","type":{"type":"array","items":"bytes"},"default":["\u00ff"]}"#,
            "n.R.a: bytes must have no default",
        ),
        (r#"{"name":"a","type":["null","string"]}"#, "n.R.a: an optional field needs the default null"),
        (
            r#"{"name":"a","type":["string","null"],"default":"x"}"#,
            "n.R.a: an optional field needs the default null",
        ),
        (
            r#"{"name":"a","type":["null","string","long"],"default":null}"#,
            "n.R.a: a union must be null and one",
        ),
        (r#"{"name":"a","type":["null","R"],"default":null}"#, "n.R.a: recursive type R"),
        (r#"{"name":"a","type":{"type":"array","items":"n.R"}}"#, "n.R.a: recursive type n.R"),
        (
            r#"{"name":"a","type":{"type":"record","name":"S","fields":[{"name":"b","type":{"type":"map","values":"R"}}]}}"#,
            "n.S.b: recursive type R",
        ),
        (r#"{"name":"a","type":{"type":"array","items":"null"}}"#, "n.R.a: items that take no bytes"),
        (
            r#"{"name":"a","type":{"type":"array","items":{"type":"record","name":"E","fields":[]}}}"#,
            "n.R.a: items that take no bytes",
        ),
    ] {
        let refused = refusal(&[&record(fields)]);
        assert!(refused.starts_with(&format!("schema 1 of t.v1: {problem}")), "{fields}: {refused}");
    }
}

#[test]
fn what_is_no_schema_of_an_event() {
    for schema in ["", "{", r#""string""#, r#"{"type":"array","items":"long"}"#, r#"{"type":"record"}"#] {
        assert!(refusal(&[schema]).starts_with("schema 1 of t.v1: "), "{schema}");
    }
    assert!(refusal(&[]).contains("no schema at all"));
}

#[test]
fn a_type_used_twice_is_not_recursive() {
    let point = r#"{"type":"record","name":"P","fields":[{"name":"x","type":"long"}]}"#;
    let fields = format!(r#"{{"name":"a","type":{point}}},{{"name":"b","type":"P"}}"#);
    assert_eq!(refusal(&[&record(&fields)]), "accepted");
}

#[test]
fn a_history_by_the_rules() {
    let with = |field: &str| record(&format!("{ID},{field}"));
    let plain = record(ID);
    let millis = with(r#"{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"}}"#);
    let micros = with(
        r#"{"name":"at","type":{"type":"long","logicalType":"timestamp-micros"}},{"name":"b","type":"long","default":0}"#,
    );
    let inner = |fields: &str| {
        with(&format!(r#"{{"name":"in","type":{{"type":"record","name":"I","fields":[{fields}]}}}}"#))
    };
    let optional = with(r#"{"name":"a","type":["null","string"],"default":null}"#);
    for (older, newer, problem) in [
        (&plain, &plain, "schema 2 of t.v1: no reader can tell it from an earlier schema"),
        (&plain, &plain.replace("\"R\"", "\"S\""), "schema 2 of t.v1: the record has another name"),
        (
            &plain,
            &with(r#"{"name":"a","type":"long"}"#),
            "schema 2 of t.v1: n.R.a: a new field needs a default",
        ),
        (&with(r#"{"name":"a","type":"long"}"#), &plain, "schema 2 of t.v1: n.R.a: removed, but old readers"),
        (
            &with(r#"{"name":"a","type":"int"}"#),
            &with(r#"{"name":"a","type":"long"}"#),
            "n.R.a: the type changed",
        ),
        (&millis, &micros, "n.R.at: the type changed"),
        (
            &inner(ID),
            &inner(r#"{"name":"id","type":"string"},{"name":"x","type":"int"}"#),
            "n.I.x: a new field needs",
        ),
        (
            &with(
                r#"{"name":"a","type":["null",{"type":"array","items":{"type":"enum","name":"E","symbols":["X"]}}],"default":null}"#,
            ),
            &plain,
            "n.R.a: removed, but this library cannot skip",
        ),
        (
            &with(r#"{"name":"a","type":["null",{"type":"record","name":"I","fields":[]}],"default":null}"#),
            &plain,
            "n.R.a: removed, but this library cannot skip",
        ),
        (&plain, &optional, "accepted"),
        (&optional, &plain, "accepted"),
        (&inner(ID), &inner(&format!(r#"{ID},{{"name":"x","type":"int","default":1}}"#)), "accepted"),
    ] {
        let refused = refusal(&[older, newer]);
        assert!(refused.contains(problem), "{newer}: {refused}");
    }
}

#[test]
fn a_field_never_comes_back_with_another_type() {
    let (one, two, three) = (
        record(&format!(r#"{ID},{{"name":"a","type":["null","string"],"default":null}}"#)),
        record(ID),
        record(&format!(r#"{ID},{{"name":"a","type":["null","long"],"default":null}}"#)),
    );
    assert!(refusal(&[&one, &two, &three]).contains("schema 3 of t.v1: n.R.a: the type changed"));
}
