//! Properties of reading: whatever lies on a topic, nothing panics, and what is dead-lettered is bounded.

use proptest::{collection::vec, option, prelude::*, sample};
use rdkafka::message::Headers as _;
use waybill_event::{OrderEvent, PointEvent, headers};

use super::*;
use crate::redirect::sizes_of;

fn event() -> Vec<u8> {
    waybill_event::encode(&PointEvent {
        entry_id: uuid::Uuid::now_v7(),
        order_id: uuid::Uuid::now_v7(),
        customer_id: uuid::Uuid::now_v7(),
        attempt_id: None,
        kind: "earned".to_owned(),
        delta: 5,
        available_after: 5,
        reason: Some("why".to_owned()),
        occurred_at: chrono::Utc::now(),
    })
    .unwrap()
}

/// Random bytes, and events with some of theirs changed, cut or added.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let damaged =
        (vec((any::<sample::Index>(), any::<u8>()), 0..6), any::<sample::Index>(), vec(any::<u8>(), 0..9));
    let damaged = damaged.prop_map(|(changes, cut, more)| {
        let mut value = event();
        for (at, byte) in changes {
            let at = at.index(value.len());
            value[at] = byte;
        }
        value.truncate(cut.index(value.len() + 1));
        value.extend(more);
        value
    });
    prop_oneof![vec(any::<u8>(), 0..400), damaged]
}

/// Names that mean something and names that do not, with values of all kinds.
fn header() -> impl Strategy<Value = (String, Option<Vec<u8>>)> {
    let known = sample::select(vec![
        headers::CE_ID,
        headers::CE_TYPE,
        headers::CE_SOURCE,
        headers::DEBEZIUM_ID,
        headers::TRACEPARENT,
        headers::TRACESTATE,
        headers::ORIGIN_TOPIC,
        headers::ORIGIN_PARTITION,
        headers::ORIGIN_OFFSET,
        headers::ORIGIN_TIMESTAMP,
        headers::FIRST_FAILED_AT,
        headers::REPLAY_ID,
        "CE_ID",
    ]);
    // A name never holds a zero byte: the client reads it up to there.
    let name = prop_oneof![known.prop_map(str::to_owned), "[^\0]{0,12}"];
    let text = prop_oneof![
        "[0-9]{1,20}".prop_map(String::into_bytes),
        "-?[0-9a-f-]{0,40}".prop_map(String::into_bytes),
        Just(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".to_vec()),
    ];
    (name, option::of(prop_oneof![vec(any::<u8>(), 0..600), text]))
}

fn record() -> impl Strategy<Value = Record> {
    let parts = (
        option::of(vec(any::<u8>(), 0..60)),
        option::of(value()),
        vec(header(), 0..12),
        option::of(any::<i64>()),
        any::<(i32, i64)>(),
    );
    parts.prop_map(|(key, value, given, timestamp_ms, (partition, offset))| {
        let list = given.iter().fold(OwnedHeaders::new(), |list, (name, value)| {
            list.insert(rdkafka::message::Header { key: name, value: value.as_ref() })
        });
        let headers = read_headers(list.as_borrowed());
        Record { topic: "orders.v1".into(), partition, offset, timestamp_ms, key, value, headers }
    })
}

/// Longer by `PROPTEST_CASES`.
fn cases() -> ProptestConfig {
    let given = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok());
    ProptestConfig { cases: given.unwrap_or(2_000), failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn no_record_panics_and_each_is_a_message_or_dead(record in record()) {
        let record = Arc::new(record);
        prop_assert_eq!(record.id(), record.id());
        let held = record.key.as_ref().map_or(0, Vec::len) + record.value.as_ref().map_or(0, Vec::len);
        prop_assert!(record.size() > held);
        let _ = record.decode::<OrderEvent>().map_err(|error| error.text.len());
        match record.decode::<PointEvent>() {
            Ok(message) => {
                prop_assert_eq!(message.id, record.id());
                let _ = (message.timestamp(), message.key_text(), format!("{message:?}"));
            }
            Err(error) => {
                prop_assert!(error.code.starts_with("decode_"), "{}", error.code);
                let [full, _, pointer, bare] = sizes_of(&record, error);
                prop_assert!(full.1, "every header of the original, in order, byte for byte");
                prop_assert!(pointer.1 && pointer.0 <= full.0 + 40);
                prop_assert!(bare.0 < 6_000, "{} bytes", bare.0);
            }
        }
    }

    #[test]
    fn headers_are_read_as_they_are(given in vec(header(), 0..40)) {
        let list = given.iter().fold(OwnedHeaders::new(), |list, (name, value)| {
            list.insert(rdkafka::message::Header { key: name, value: value.as_ref() })
        });
        let RecordHeaders::Read(read) = read_headers(list.as_borrowed()) else {
            return Err(TestCaseError::fail("all names are UTF-8"));
        };
        let read: Vec<_> = read.into_iter().map(|header| (header.name, header.value)).collect();
        prop_assert_eq!(list.count(), given.len());
        prop_assert_eq!(read, given);
    }
}
