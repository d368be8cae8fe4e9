//! Nothing but one whole event of a known schema decodes, and no bytes do harm.

use proptest::prelude::*;
use waybill_event::{
    Attempt, DecodeError, EncodeError, Event, MAX_VALUE_BYTES, OrderEvent, OrderItem, PointEvent, decode,
    encode,
};

use crate::samples::{bare_order, bare_point, full_order, full_point, time};

fn valid() -> [Vec<u8>; 4] {
    [
        encode(&full_order()).unwrap(),
        encode(&bare_order()).unwrap(),
        encode(&full_point()).unwrap(),
        encode(&bare_point()).unwrap(),
    ]
}

/// Decodes as both types; the reader of the other topic must refuse by fingerprint.
fn decode_both(bytes: &[u8]) -> (Result<OrderEvent, DecodeError>, Result<PointEvent, DecodeError>) {
    (decode(bytes), decode(bytes))
}

fn order_with_header(datum: &[u8]) -> Vec<u8> {
    [&OrderEvent::codec().header()[..], datum].concat()
}

#[test]
fn what_is_written_is_read() {
    for event in [full_order(), bare_order()] {
        assert_eq!(decode::<OrderEvent>(&encode(&event).unwrap()).unwrap(), event);
    }
    for event in [full_point(), bare_point()] {
        assert_eq!(decode::<PointEvent>(&encode(&event).unwrap()).unwrap(), event);
    }
}

#[test]
fn every_prefix_is_an_error_that_says_so() {
    fn check<E: Event + std::fmt::Debug>(bytes: &[u8]) {
        assert_eq!(decode::<E>(&[]).unwrap_err(), DecodeError::Empty);
        for end in 1..bytes.len() {
            assert_eq!(decode::<E>(&bytes[..end]).unwrap_err(), DecodeError::Truncated(end));
        }
    }
    let [a, b, c, d] = valid();
    check::<OrderEvent>(&a);
    check::<OrderEvent>(&b);
    check::<PointEvent>(&c);
    check::<PointEvent>(&d);
}

#[test]
fn trailing_bytes_are_an_error() {
    for extra in [1, 2, 100] {
        let mut bytes = encode(&full_order()).unwrap();
        bytes.resize(bytes.len() + extra, 0);
        assert_eq!(decode::<OrderEvent>(&bytes).unwrap_err(), DecodeError::TrailingBytes(extra));
    }
}

#[test]
fn the_other_topics_event_is_an_unknown_schema() {
    let error = decode::<OrderEvent>(&encode(&full_point()).unwrap()).unwrap_err();
    let point = u64::from_le_bytes(PointEvent::codec().header()[2..].try_into().unwrap());
    assert_eq!(error, DecodeError::UnknownFingerprint(point));
    assert!(error.is_unknown_schema());
    assert_eq!(error.code(), "decode_unknown_schema");
}

#[test]
fn other_framings_are_named_by_their_first_bytes() {
    for bytes in [&b"\x00\x00\x00\x00\x01abc"[..], b"{\"orderId\":1}", b"\xc3\x02", b"Obj\x01"] {
        let error = decode::<OrderEvent>(bytes).unwrap_err();
        assert_eq!(error, DecodeError::UnknownFrame { first: bytes[..bytes.len().min(10)].to_vec() });
        assert!(!error.is_unknown_schema());
    }
}

#[test]
fn one_byte_over_the_limit_is_neither_written_nor_read() {
    let mut event = full_order();
    let rest = encode(&event).unwrap().len() - event.reason.as_ref().map_or(0, String::len);
    // The longer text needs two more bytes for its own length.
    event.reason = Some("x".repeat(MAX_VALUE_BYTES - rest - 2));
    let bytes = encode(&event).unwrap();
    assert_eq!(bytes.len(), MAX_VALUE_BYTES);
    assert_eq!(decode::<OrderEvent>(&bytes).unwrap(), event);

    event.reason = event.reason.map(|reason| reason + "x");
    let (size, limit) = (MAX_VALUE_BYTES + 1, MAX_VALUE_BYTES);
    assert!(
        matches!(encode(&event), Err(EncodeError::TooLarge { size: s, limit: l }) if (s, l) == (size, limit))
    );
    let error = decode::<OrderEvent>(&[bytes, vec![0]].concat()).unwrap_err();
    assert_eq!(error, DecodeError::TooLarge { size, limit });
}

#[test]
fn a_full_value_of_many_items_is_read_whole() {
    let item = OrderItem { sku: String::new(), quantity: 1, unit_price: 1 };
    let event = OrderEvent { items: vec![item; 300_000], ..bare_order() };
    assert_eq!(decode::<OrderEvent>(&encode(&event).unwrap()).unwrap(), event);
}

#[test]
fn announced_lengths_are_not_believed() {
    let id = b"\x4801900000-0000-7000-8000-000000000001";
    // A string of 2^40, of 2^62 and of -1 bytes.
    for length in [&b"\x80\x80\x80\x80\x80\x40"[..], b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01", b"\x01"] {
        let error = decode::<OrderEvent>(&order_with_header(length)).unwrap_err();
        assert!(matches!(error, DecodeError::Malformed(_)), "{error}");
    }
    // An integer that never ends, and one of more than 64 bits.
    for version in [[0xff; 9].as_slice(), &[0xff; 20]] {
        assert!(decode::<OrderEvent>(&order_with_header(&[&id[..], version].concat())).is_err());
    }
    // An array that announces 2^62 items and -2^63 items, then ends.
    let head = [&id[..], b"\x02\x00\x00", id, b"\x06KRW"].concat();
    for count in
        [&b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"[..], b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"]
    {
        let bytes = order_with_header(&[&head[..], count].concat());
        assert_eq!(decode::<OrderEvent>(&bytes).unwrap_err(), DecodeError::Truncated(bytes.len()));
    }
}

#[test]
fn allocation_is_bounded_once_a_codec_is_made() {
    drop(valid());
    assert_eq!(apache_avro::util::max_allocation_bytes(usize::MAX), MAX_VALUE_BYTES);
}

#[test]
fn what_the_struct_cannot_hold_is_malformed() {
    let id = b"\x4801900000-0000-7000-8000-000000000001";
    let mut no_uuid = encode(&full_order()).unwrap();
    no_uuid[11] = b'x';
    let mut not_utf8 = encode(&full_point()).unwrap();
    let at = not_utf8.windows(4).position(|w| w == b"held").unwrap();
    not_utf8[at] = 0xff;
    // Union branch 2 of 2, and a time beyond any calendar.
    let no_branch = [&PointEvent::codec().header()[..], id, id, id, b"\x04"].concat();
    let no_time =
        [&PointEvent::codec().header()[..], id, id, id, &[0, 0, 0, 0, 0], &[0xfe; 9], &[1]].concat();
    assert!(matches!(decode::<OrderEvent>(&no_uuid), Err(DecodeError::Malformed(_))));
    for bytes in [not_utf8, no_branch, no_time] {
        let error = decode::<PointEvent>(&bytes).unwrap_err();
        assert_eq!(error.code(), "decode_malformed", "{error}");
        assert!(error.to_string().len() < 1024, "an error fits into its header");
    }
}

#[test]
fn no_changed_byte_panics_and_none_in_the_frame_decodes() {
    for bytes in valid() {
        for at in 0..bytes.len() {
            for change in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                let (order, point) = decode_both(&changed);
                assert!(at >= 10 || (order.is_err() && point.is_err()));
                // Whatever was accepted is a value like any other.
                order.iter().for_each(|event| drop(encode(event).unwrap()));
                point.iter().for_each(|event| drop(encode(event).unwrap()));
            }
        }
    }
}

fn any_time() -> impl Strategy<Value = chrono::DateTime<chrono::Utc>> {
    (-62_135_596_800_000_000_i64..253_402_300_800_000_000).prop_map(time)
}

fn any_attempt() -> impl Strategy<Value = Attempt> {
    (any::<u128>(), any::<i32>(), any::<i64>(), any::<i64>(), any_time()).prop_map(
        |(id, number, points_to_use, payable, confirm_not_after)| Attempt {
            id: uuid::Uuid::from_u128(id),
            number,
            points_to_use,
            payable,
            confirm_not_after,
        },
    )
}

fn any_order() -> impl Strategy<Value = OrderEvent> {
    let item = (any::<String>(), any::<i32>(), any::<i64>())
        .prop_map(|(sku, quantity, unit_price)| OrderItem { sku, quantity, unit_price });
    let items = proptest::collection::vec(item, 0..5);
    let attempt = proptest::option::of(any_attempt());
    let optional = (proptest::option::of(any_time()), proptest::option::of(any::<String>()), any_time());
    (any::<u128>(), any::<i64>(), any::<String>(), items, attempt, optional).prop_map(
        |(id, number, text, items, attempt, (expires_at, reason, occurred_at))| OrderEvent {
            order_id: uuid::Uuid::from_u128(id),
            version: number,
            refunded: number,
            status: text,
            items,
            attempt,
            expires_at,
            reason,
            occurred_at,
            ..full_order()
        },
    )
}

proptest! {
    #[test]
    fn any_order_comes_back_equal(event in any_order()) {
        prop_assert_eq!(decode::<OrderEvent>(&encode(&event).unwrap()).unwrap(), event);
    }

    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let (order, point) = decode_both(&bytes);
        prop_assert!(order.is_err() && point.is_err());
    }

    #[test]
    fn random_bytes_behind_a_valid_header_never_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..400),
    ) {
        drop(decode::<OrderEvent>(&order_with_header(&bytes)));
        drop(decode::<PointEvent>(&[&PointEvent::codec().header()[..], &bytes].concat()));
    }

    #[test]
    fn a_valid_event_with_several_bytes_changed_never_panics(
        which in 0_usize..4,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
    ) {
        let mut bytes = valid()[which].clone();
        for (at, byte) in changes {
            let at = 10 + at.index(bytes.len() - 10);
            bytes[at] = byte;
        }
        drop(decode_both(&bytes));
    }
}
