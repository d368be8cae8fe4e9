//! Values and headers as people can read them.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;
use waybill_event::{DecodeError, Event, OrderEvent, PointEvent};

use super::view::{Encoding, Header, Payload};
use crate::index::{RawHeader, spring_number};

/// Bytes that are shown in hex.
const HEX: usize = 4096;

/// A value for those who may see it.
pub(super) fn show(topic: Option<&str>, value: Option<&[u8]>, left_out: bool) -> Payload {
    let mut payload = mask(value.map(|value| i32::try_from(value.len()).unwrap_or(i32::MAX)), left_out);
    payload.masked = false;
    let Some(value) = value else { return payload };
    match topic.and_then(|topic| decode(topic, value)) {
        Some(Ok(event)) => payload.decoded = Some(event),
        Some(Err(error)) => payload.decode_error = Some(error.to_string()),
        None => {}
    }
    payload.hex = Some(value.iter().take(HEX).map(|byte| format!("{byte:02x}")).collect());
    payload.base64 = Some(STANDARD.encode(value));
    payload
}

/// What everybody may know of a value.
pub(super) fn mask(bytes: Option<i32>, left_out: bool) -> Payload {
    let kind = match bytes {
        None if left_out => "left_out",
        None => "null",
        Some(0) => "empty",
        Some(_) => "bytes",
    };
    Payload {
        kind: kind.to_owned(),
        bytes,
        masked: true,
        decoded: None,
        decode_error: None,
        hex: None,
        base64: None,
    }
}

/// By the topic without prefix; `None` when its schema is not known here.
fn decode(topic: &str, value: &[u8]) -> Option<Result<Value, DecodeError>> {
    fn event<E: Event + Serialize>(value: &[u8]) -> Result<Value, DecodeError> {
        waybill_event::decode::<E>(value).map(|event| serde_json::to_value(event).unwrap_or_default())
    }
    match topic {
        OrderEvent::TOPIC => Some(event::<OrderEvent>(value)),
        PointEvent::TOPIC => Some(event::<PointEvent>(value)),
        _ => None,
    }
}

/// A header with null, empty, text and bytes told apart.
pub(super) fn header(raw: RawHeader) -> Header {
    let number =
        raw.name.as_deref().zip(raw.value.as_deref()).and_then(|(name, value)| spring_number(name, value));
    let (value, encoding) = match (&raw.name, raw.value) {
        (None, _) => (None, Encoding::Unreadable),
        (_, None) => (None, Encoding::Null),
        (_, Some(value)) => match String::from_utf8(value) {
            Ok(text) if !text.chars().any(|c| c.is_control() && !c.is_whitespace()) => {
                (Some(text), Encoding::Utf8)
            }
            Ok(text) => (Some(STANDARD.encode(text)), Encoding::Base64),
            Err(error) => (Some(STANDARD.encode(error.into_bytes())), Encoding::Base64),
        },
    };
    Header { name: raw.name, value, encoding, number }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_empty_text_and_bytes_are_told_apart() {
        let of = |value: Option<&[u8]>| {
            let header = header(RawHeader { name: Some("h".into()), value: value.map(<[u8]>::to_vec) });
            (header.value, header.encoding)
        };
        assert_eq!(of(None), (None, Encoding::Null));
        assert_eq!(of(Some(b"")), (Some(String::new()), Encoding::Utf8));
        assert_eq!(of(Some(b"x")), (Some("x".into()), Encoding::Utf8));
        assert_eq!(of(Some(&[0, 0, 0, 3])), (Some("AAAAAw==".into()), Encoding::Base64));
        assert_eq!(of(Some(&[0xff])), (Some("/w==".into()), Encoding::Base64));
        assert_eq!(header(RawHeader { name: None, value: None }).encoding, Encoding::Unreadable);
        let kinds = [mask(None, true), mask(None, false), mask(Some(0), false), mask(Some(3), false)];
        assert_eq!(kinds.map(|payload| payload.kind), ["left_out", "null", "empty", "bytes"]);
    }

    #[test]
    fn what_is_no_event_is_shown_in_hex_with_the_reason() {
        let payload = show(Some("orders.v1"), Some(&[1, 2, 0xab]), false);
        assert_eq!(payload.hex.as_deref(), Some("0102ab"));
        assert!(payload.decode_error.is_some() && payload.decoded.is_none());
        assert!(show(Some("other"), Some(&[1]), false).decode_error.is_none());
    }
}
