//! Bytes and fingerprints that other languages agree with.
//!
//! How they were made, with org.apache.avro:avro:1.12.0 (Java 17) and fastavro 1.13.1 (Python 3):
//! - `JAVA_*`: `SchemaNormalization.parsingFingerprint64(new Schema.Parser().parse(file))`; fastavro's
//!   `fingerprint(to_parsing_canonical_form(load_schema(file)), "CRC-64-AVRO")` gave the same.
//! - The events were written by this crate from the values in `samples.rs`. Java's
//!   `BinaryMessageDecoder<GenericRecord>(new GenericData(), schema)` read each (it checks the fingerprint), its
//!   `BinaryMessageEncoder` wrote the very same bytes again, and so did fastavro's `schemaless_reader` and
//!   `schemaless_writer` for what follows the first ten bytes. The values they printed were those of `samples.rs`.

use waybill_event::{Codec, Event, OrderEvent, PointEvent, decode, encode};

use crate::samples::{bare_order, bare_point, full_order, full_point};

const JAVA_ORDERS_1: u64 = 0x52c9_1ac0_dae0_c23d;
const JAVA_POINTS_1: u64 = 0x7c53_79d4_b0e5_7d11;
/// Of [`EXAMPLE`]: logical types in every position, names in two namespaces, a type used again.
const JAVA_EXAMPLE: u64 = 0xc847_e60c_a2c6_b477;
const EXAMPLE: &str = r#"{"type":"record","name":"Example","namespace":"waybill.test","doc":"d","fields":[
 {"name":"id","type":{"type":"string","logicalType":"uuid"}},
 {"name":"day","type":{"type":"int","logicalType":"date"},"default":0},
 {"name":"opt","type":["null",{"type":"long","logicalType":"timestamp-micros"}],"default":null},
 {"name":"many","type":{"type":"array","items":{"type":"string","logicalType":"uuid"}}},
 {"name":"by","type":{"type":"map","values":{"type":"bytes","logicalType":"decimal","precision":9,"scale":2}}},
 {"name":"hash","type":{"type":"fixed","name":"Hash","size":16,"namespace":"waybill.other"}},
 {"name":"inner","type":{"type":"record","name":"Inner","fields":[{"name":"kind","type":{"type":"enum","name":"Kind","symbols":["A","B"],"default":"A"}},{"name":"again","type":["null","waybill.other.Hash"],"default":null}]}},
 {"name":"plain","type":{"type":"double"}}
]}"#;

const FULL_ORDER: &str = "\
    c3013dc2e0dac01ac9524830313930303030302d303030302d373030302d383030302d30303030303030303030303106\
    12636f6e6669726d656412434f4e4649524d45444830313930303030302d303030302d373030302d383030302d303030\
    303030303030303032064b5257040c5445412d303104a8c3010cecb0bbec9e9402e0d40300b0db060843415244024830\
    313930303030302d303030302d373030302d383030302d30303030303030303030303302904ea08d06828caffefcdcb0\
    06904ea08d0600a08d06c8010280c8f09488ddb0060208706169648089b1e0fadcb006";

const BARE_ORDER: &str = "\
    c3013dc2e0dac01ac9524830313930303030302d303030302d373030302d383030302d30303030303030303030303106\
    0012434f4e4649524d45444830313930303030302d303030302d373030302d383030302d303030303030303030303032\
    064b525700feffffffffffffffff01084341524400904effffffffffffffffff0100a08d06ffffffff0f000001";

const FULL_POINT: &str = "\
    c301117de5b0d479537c4830313930303030302d303030302d373030302d383030302d30303030303030303030303448\
    30313930303030302d303030302d373030302d383030302d3030303030303030303030314830313930303030302d3030\
    30302d373030302d383030302d303030303030303030303032024830313930303030302d303030302d373030302d3830\
    30302d3030303030303030303030330868656c648f4ee0120210636865636b6f75748089b1e0fadcb006";

const BARE_POINT: &str = "\
    c301117de5b0d479537c4830313930303030302d303030302d373030302d383030302d30303030303030303030303448\
    30313930303030302d303030302d373030302d383030302d3030303030303030303030314830313930303030302d3030\
    30302d373030302d383030302d303030303030303030303032000868656c648f4ee012008089b1e0fadcb006";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(digit).collect()
}

fn fingerprints(codec: &Codec) -> Vec<u64> {
    codec.history().map(|(fingerprint, _)| fingerprint).collect()
}

#[test]
fn fingerprints_are_javas() {
    assert_eq!(fingerprints(OrderEvent::codec())[0], JAVA_ORDERS_1);
    assert_eq!(fingerprints(PointEvent::codec())[0], JAVA_POINTS_1);
    assert_eq!(fingerprints(&Codec::new("t", &[EXAMPLE]).unwrap()), [JAVA_EXAMPLE]);
}

#[test]
fn the_frame_is_marker_and_little_endian_fingerprint() {
    let [c3, one, fingerprint @ ..] = OrderEvent::codec().header();
    assert_eq!([c3, one], [0xC3, 0x01]);
    let newest = OrderEvent::codec().history().next_back().unwrap().0;
    assert_eq!(fingerprint, newest.to_le_bytes());
    assert_eq!(OrderEvent::codec().topic(), OrderEvent::TOPIC);
}

/// Reading golden bytes must work for ever. Only writing changes with a new schema: then the vectors above stay for
/// reading, and new ones are added for writing.
#[test]
fn golden_events_are_read() {
    assert_eq!(decode::<OrderEvent>(&bytes(FULL_ORDER)).unwrap(), full_order());
    assert_eq!(decode::<OrderEvent>(&bytes(BARE_ORDER)).unwrap(), bare_order());
    assert_eq!(decode::<PointEvent>(&bytes(FULL_POINT)).unwrap(), full_point());
    assert_eq!(decode::<PointEvent>(&bytes(BARE_POINT)).unwrap(), bare_point());
}

#[test]
fn golden_events_are_written() {
    assert_eq!(hex(&encode(&full_order()).unwrap()), FULL_ORDER);
    assert_eq!(hex(&encode(&bare_order()).unwrap()), BARE_ORDER);
    assert_eq!(hex(&encode(&full_point()).unwrap()), FULL_POINT);
    assert_eq!(hex(&encode(&bare_point()).unwrap()), BARE_POINT);
}

#[test]
fn names_and_keys() {
    assert_eq!(full_order().event_type(), "waybill.order.confirmed");
    assert_eq!(full_order().key(), "01900000-0000-7000-8000-000000000001");
    assert_eq!(full_point().event_type(), "waybill.points.held");
    assert_eq!(full_point().key(), full_order().key());
    assert_eq!((OrderEvent::AGGREGATE, PointEvent::AGGREGATE), ("order", "order"));
}
