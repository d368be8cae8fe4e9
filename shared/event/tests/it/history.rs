//! The compatibility gate: every schema ever published is frozen, and old and new read each other.

use std::{collections::BTreeMap, fmt::Debug, fs, path::PathBuf};

use apache_avro::{
    Schema, reader::datum::GenericDatumReader, types::Value, writer::datum::GenericDatumWriter,
};
use sha2::{Digest, Sha256};
use waybill_event::{Event, OrderEvent, PointEvent, ReplayOutcome, decode, encode};

fn schemas() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../schemas")
}

/// Number and text of each history file of a topic, oldest first.
fn files(topic: &str) -> BTreeMap<usize, String> {
    let numbered = |path: PathBuf| {
        let number = path.file_stem().unwrap().to_str().unwrap().parse().expect("the name is a number");
        assert_eq!(path.extension().unwrap(), "avsc");
        (number, fs::read_to_string(path).unwrap())
    };
    let folder = fs::read_dir(schemas().join("history").join(topic)).unwrap();
    folder.map(|entry| numbered(entry.unwrap().path())).collect()
}

fn for_every_topic(check: fn(&str, Vec<(u64, String)>)) {
    fn of<E: Event>() -> (&'static str, Vec<(u64, String)>) {
        (E::TOPIC, E::codec().history().map(|(print, json)| (print, json.to_owned())).collect())
    }
    for (topic, history) in [of::<ReplayOutcome>(), of::<OrderEvent>(), of::<PointEvent>()] {
        check(topic, history);
    }
}

/// Without the documentation, which may be improved at any time.
fn meaning(json: &str) -> serde_json::Value {
    fn strip(value: &mut serde_json::Value) {
        match value {
            serde_json::Value::Object(object) => {
                object.remove("doc");
                object.values_mut().for_each(strip);
            }
            serde_json::Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let mut value = serde_json::from_str(json).unwrap();
    strip(&mut value);
    value
}

#[test]
fn every_history_file_is_embedded_in_order() {
    for_every_topic(|topic, embedded| {
        let files = files(topic);
        assert!(files.keys().copied().eq(1..=files.len()), "{topic}: numbers go 1, 2, 3 …");
        assert!(files.into_values().eq(embedded.into_iter().map(|(_, json)| json)), "{topic}");
    });
}

#[test]
fn a_schema_does_not_change_without_a_new_history_file() {
    for_every_topic(|topic, embedded| {
        let current = fs::read_to_string(schemas().join(format!("{topic}.avsc"))).unwrap();
        let (_, newest) = embedded.last().unwrap();
        assert_eq!(
            meaning(&current),
            meaning(newest),
            "{topic}.avsc changed: add schemas/history/{topic}/<n>.avsc"
        );
    });
}

#[test]
fn every_topic_with_a_schema_has_an_event_type() {
    let mut topics = Vec::new();
    for entry in fs::read_dir(schemas().join("history")).unwrap() {
        let entry = entry.unwrap();
        if entry.file_type().unwrap().is_dir() {
            topics.push(entry.file_name().into_string().unwrap());
        }
    }
    topics.sort();
    assert_eq!(topics, [ReplayOutcome::TOPIC, OrderEvent::TOPIC, PointEvent::TOPIC]);
}

#[test]
fn history_files_are_frozen() {
    let listed = fs::read_to_string(schemas().join("history/CHECKSUMS")).unwrap();
    let listed: BTreeMap<_, _> =
        listed.lines().map(|line| line.split_once("  ").unwrap()).map(|(s, f)| (f, s)).collect();
    let mut found = 0;
    for topic in [ReplayOutcome::TOPIC, OrderEvent::TOPIC, PointEvent::TOPIC] {
        for (number, text) in files(topic) {
            let file = format!("{topic}/{number}.avsc");
            let sum: String = Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(listed.get(file.as_str()), Some(&sum.as_str()), "{file} is not as it was published");
            found += 1;
        }
    }
    assert_eq!(found, listed.len(), "a published schema is gone");
}

#[test]
fn every_field_of_the_current_schemas_has_a_doc() {
    fn walk(schema: &serde_json::Value) {
        if let Some(fields) = schema["fields"].as_array() {
            assert!(schema["doc"].is_string(), "{}", schema["name"]);
            for field in fields {
                assert!(field["doc"].is_string(), "{}.{}", schema["name"], field["name"]);
                walk(&field["type"]);
            }
        }
        schema["items"].is_object().then(|| walk(&schema["items"]));
        schema.as_array().into_iter().flatten().for_each(walk);
    }
    for_every_topic(|topic, _| {
        let current = fs::read_to_string(schemas().join(format!("{topic}.avsc"))).unwrap();
        walk(&serde_json::from_str(&current).unwrap());
    });
}

/// A value of the schema: `filled` takes the other branch of each union and two items in each array.
fn sample(schema: &Schema, filled: bool) -> Value {
    match schema {
        Schema::Int => Value::Int(if filled { i32::MAX } else { 0 }),
        Schema::Long => Value::Long(if filled { i64::MIN } else { 0 }),
        Schema::TimestampMicros => Value::TimestampMicros(if filled { 1_796_000_000_123_456 } else { -1 }),
        Schema::String => Value::String(if filled { "값 \u{1F375}".into() } else { String::new() }),
        Schema::Uuid(_) => Value::Uuid(uuid::Uuid::from_u128(if filled { u128::MAX } else { 7 })),
        Schema::Array(array) => Value::Array(vec![sample(&array.items, filled); if filled { 2 } else { 0 }]),
        Schema::Map(map) => {
            let entries = if filled { &["k", "ㅋ"][..] } else { &[] };
            Value::Map(entries.iter().map(|key| ((*key).to_owned(), sample(&map.types, filled))).collect())
        }
        Schema::Union(union) => {
            let branch = u32::from(filled);
            Value::Union(branch, Box::new(sample(&union.variants()[branch as usize], filled)))
        }
        Schema::Null => Value::Null,
        Schema::Record(record) => {
            let value = |schema| sample(schema, filled);
            Value::Record(
                record.fields.iter().map(|field| (field.name.clone(), value(&field.schema))).collect(),
            )
        }
        other => panic!("the sample generator does not know {other:?} yet"),
    }
}

fn resolved(writer: &Schema, reader: &Schema, datum: &[u8]) -> Value {
    let mut rest = datum;
    let reader =
        GenericDatumReader::builder(writer).reader_schema(reader).human_readable(true).build().unwrap();
    let value = reader.read_value(&mut rest).unwrap();
    assert!(rest.is_empty());
    value
}

/// Old bytes decode into today's struct exactly as Avro would resolve them (so serde's defaults are the schema's),
/// and what today's struct writes is readable with the old schema.
pub(crate) fn old_and_new_read_each_other<E: Event + Debug + PartialEq>() {
    let history: Vec<_> =
        E::codec().history().map(|(p, json)| (p, Schema::parse_str(json).unwrap())).collect();
    let (_, newest) = history.last().unwrap();
    for (fingerprint, old) in &history {
        for filled in [false, true] {
            let writer = GenericDatumWriter::builder(old).human_readable(true).build().unwrap();
            let datum = writer.write_value_to_vec(sample(old, filled)).unwrap();
            let bytes = [&[0xC3, 0x01][..], &fingerprint.to_le_bytes(), &datum].concat();
            let event: E = decode(&bytes).unwrap();
            let again = encode(&event).unwrap();
            assert_eq!(decode::<E>(&again).unwrap(), event);
            assert_eq!(resolved(old, newest, &datum), resolved(newest, newest, &again[10..]), "{event:?}");
            resolved(newest, old, &again[10..]);
        }
    }
}

#[test]
fn old_and_new_orders_read_each_other() {
    old_and_new_read_each_other::<OrderEvent>();
}

#[test]
fn old_and_new_points_read_each_other() {
    old_and_new_read_each_other::<PointEvent>();
}

#[test]
fn old_and_new_outcomes_read_each_other() {
    old_and_new_read_each_other::<ReplayOutcome>();
}
