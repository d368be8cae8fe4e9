//! A topic over three schemas: one field added, then one removed. Each version is a struct of its own time.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::{Deserialize, Serialize};
use waybill_event::{Codec, DecodeError, Event, decode, encode};

use crate::history::old_and_new_read_each_other;

const V1: &str = r#"{"type":"record","name":"Note","namespace":"waybill.test","fields":[
    {"name":"id","type":{"type":"string","logicalType":"uuid"}},
    {"name":"old","type":["null",{"type":"array","items":{"type":"map","values":"string"}}],"default":null},
    {"name":"text","type":"string"}]}"#;
const V2: &str = r#"{"type":"record","name":"Note","namespace":"waybill.test","fields":[
    {"name":"id","type":{"type":"string","logicalType":"uuid"}},
    {"name":"old","type":["null",{"type":"array","items":{"type":"map","values":"string"}}],"default":null},
    {"name":"rank","type":"int","default":7},
    {"name":"text","type":"string"}]}"#;
const V3: &str = r#"{"type":"record","name":"Note","namespace":"waybill.test","fields":[
    {"name":"id","type":{"type":"string","logicalType":"uuid"}},
    {"name":"rank","type":"int","default":7},
    {"name":"text","type":"string"}]}"#;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Note")]
struct First {
    id: uuid::Uuid,
    #[serde(default)]
    old: Option<Vec<BTreeMap<String, String>>>,
    text: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Note")]
struct Third {
    text: String,
    id: uuid::Uuid,
    #[serde(default = "seven")]
    rank: i32,
}

/// Forgets the default that its schema declares.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename = "Note")]
struct Forgetful {
    id: uuid::Uuid,
    #[serde(default)]
    rank: i32,
    text: String,
}

/// Another name than the record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Misnamed {
    id: uuid::Uuid,
    rank: i32,
    text: String,
}

fn seven() -> i32 {
    7
}

macro_rules! event {
    ($type:ident, $schemas:expr) => {
        impl Event for $type {
            const TOPIC: &'static str = "notes.v1";
            const AGGREGATE: &'static str = "note";

            fn codec() -> &'static Codec {
                static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::embedded("notes.v1", $schemas));
                &CODEC
            }

            fn event_type(&self) -> String {
                "waybill.test.noted".into()
            }

            fn key(&self) -> String {
                self.id.to_string()
            }
        }
    };
}

event!(First, &[V1]);
event!(Third, &[V1, V2, V3]);
event!(Forgetful, &[V1, V2, V3]);
event!(Misnamed, &[V3]);

fn first() -> First {
    let old = BTreeMap::from([("a".into(), "b".into()), ("c".into(), "d".into())]);
    First { id: uuid::Uuid::from_u128(1), old: Some(vec![old.clone(), old]), text: "note".into() }
}

#[test]
fn old_bytes_fill_new_fields_and_skip_removed_ones() {
    let third = Third { id: uuid::Uuid::from_u128(1), rank: 7, text: "note".into() };
    assert_eq!(decode::<Third>(&encode(&first()).unwrap()).unwrap(), third);
    assert_eq!(decode::<Third>(&encode(&First { old: None, ..first() }).unwrap()).unwrap(), third);
    old_and_new_read_each_other::<Third>();
}

#[test]
fn skipped_fields_are_still_checked() {
    let bytes = encode(&first()).unwrap();
    for end in 1..bytes.len() {
        assert_eq!(decode::<Third>(&bytes[..end]).unwrap_err(), DecodeError::Truncated(end));
    }
}

#[test]
fn a_reader_from_before_does_not_guess() {
    let new = Third { id: uuid::Uuid::from_u128(1), rank: 3, text: "note".into() };
    assert!(decode::<First>(&encode(&new).unwrap()).unwrap_err().is_unknown_schema());
}

#[test]
#[should_panic(expected = "rank")]
fn the_gate_sees_a_default_that_differs_between_struct_and_schema() {
    old_and_new_read_each_other::<Forgetful>();
}

#[test]
fn a_struct_that_is_not_named_as_its_record_cannot_be_read() {
    let event = Misnamed { id: uuid::Uuid::from_u128(1), rank: 3, text: "note".into() };
    let error = decode::<Misnamed>(&encode(&event).unwrap()).unwrap_err();
    assert_eq!(error.code(), "decode_malformed");
}

/// The trap behind decoding through serde only: fails (and may go) once the library no longer has it.
#[test]
fn the_value_path_of_this_library_takes_a_cut_event_for_whole() {
    use apache_avro::{Schema, reader::datum::GenericDatumReader, types::Value};
    let schema = Schema::parse_str(V1).unwrap();
    let bytes = encode(&first()).unwrap();
    let cut = &bytes[10..bytes.len() - 1];
    let reader = GenericDatumReader::builder(&schema).human_readable(true).build().unwrap();
    let Value::Record(fields) = reader.read_value(&mut &cut[..]).unwrap() else { panic!("a record") };
    assert_eq!(fields[2], ("text".to_owned(), Value::Null));
    assert_eq!(
        decode::<First>(&bytes[..bytes.len() - 1]).unwrap_err(),
        DecodeError::Truncated(bytes.len() - 1)
    );
}
