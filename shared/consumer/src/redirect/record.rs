//! The headers of a redirected record, and what is left out when the topic refuses its size.

use rdkafka::message::{Header as KafkaHeader, OwnedHeaders};
use waybill_event::{Headers, headers, time::ce_time};

use super::mask;
use crate::{batch::Fallen, record::RecordHeaders};

/// On a dead letter whose value was left out because the topic refused its size: how many bytes it had. The origin
/// headers say where it lies.
pub const VALUE_BYTES: &str = "waybill-value-bytes";

/// Bound of the error text once the size was refused.
const SHORT_ERROR_BYTES: usize = 64;

/// What goes into the record, from the most to the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shape {
    Full,
    ShortError,
    /// No value; it points to the origin.
    Pointer,
    /// No value and none of the original's headers but id and trace.
    Bare,
}

impl Shape {
    pub(super) const fn smaller(self) -> Option<Self> {
        match self {
            Self::Full => Some(Self::ShortError),
            Self::ShortError => Some(Self::Pointer),
            Self::Pointer => Some(Self::Bare),
            Self::Bare => None,
        }
    }

    pub(super) const fn has_value(self) -> bool {
        matches!(self, Self::Full | Self::ShortError)
    }
}

/// Every header of the original in its order, then ours: the origin set once, the last failure replaced.
pub(super) fn headers_of(fallen: &Fallen, group: &str, shape: Shape) -> OwnedHeaders {
    let original = match (&fallen.record.headers, shape) {
        (RecordHeaders::Opaque { .. }, Shape::Bare) => Headers::new(),
        // Names that cannot be read cannot be compared either: the list goes on whole, and ours behind it.
        (RecordHeaders::Opaque { whole, .. }, _) => {
            let mut ours = Headers::new();
            describe(&mut ours, fallen, group, shape);
            return append(whole.clone(), &ours);
        }
        (RecordHeaders::Read(read), Shape::Bare) => identity(read),
        (RecordHeaders::Read(read), _) => read.clone(),
    };
    let mut all = original;
    describe(&mut all, fallen, group, shape);
    append(OwnedHeaders::new_with_capacity(all.len()), &all)
}

fn describe(all: &mut Headers, fallen: &Fallen, group: &str, shape: Shape) {
    let record = &fallen.record;
    let failed_at = ce_time(fallen.failed_at);
    let once = [
        (headers::ORIGIN_TOPIC, Some(record.topic.to_string())),
        (headers::ORIGIN_PARTITION, Some(record.partition.to_string())),
        (headers::ORIGIN_OFFSET, Some(record.offset.to_string())),
        (headers::ORIGIN_TIMESTAMP, record.timestamp_ms.map(|time| time.to_string())),
    ];
    // The four belong together: a later hop must not complete another record's origin.
    if all.get(headers::ORIGIN_TOPIC).is_none() {
        for (name, value) in once {
            value.into_iter().for_each(|value| all.set(name, value));
        }
    }
    // Of a first attempt this is the first failure, whatever a foreigner says.
    if fallen.attempt <= 1 || all.get(headers::FIRST_FAILED_AT).is_none() {
        all.set(headers::FIRST_FAILED_AT, failed_at.clone());
    }
    let mut text = mask::error_text(&fallen.text);
    if shape != Shape::Full {
        text.truncate(text.floor_char_boundary(SHORT_ERROR_BYTES));
    }
    all.set(headers::GROUP, group);
    all.set(headers::ATTEMPT, fallen.attempt.to_string());
    all.set(headers::ERROR_CODE, fallen.code.as_str());
    all.set(headers::ERROR_CLASS, fallen.class);
    all.set(headers::ERROR_MESSAGE, text);
    all.set(headers::FAILED_AT, failed_at);
    match &fallen.again {
        Some(again) => all.set(headers::DUE_AT, ce_time(again.due)),
        None => all.remove(headers::DUE_AT),
    }
    match &fallen.traceparent {
        Some(traceparent) => all.set(headers::LAST_TRACEPARENT, traceparent.as_str()),
        None => all.remove(headers::LAST_TRACEPARENT),
    }
    if !shape.has_value() {
        all.set(VALUE_BYTES, record.value.as_ref().map_or(0, Vec::len).to_string());
    }
}

fn identity(read: &Headers) -> Headers {
    const KEPT: [&str; 8] = [
        headers::CE_ID,
        headers::CE_SOURCE,
        headers::DEBEZIUM_ID,
        headers::TRACEPARENT,
        headers::ORIGIN_TOPIC,
        headers::ORIGIN_PARTITION,
        headers::ORIGIN_OFFSET,
        headers::ORIGIN_TIMESTAMP,
    ];
    const MAX_BYTES: usize = 256;
    let small = |name: &&str| read.get(name).is_some_and(|value| value.len() <= MAX_BYTES);
    let mut kept = Headers::new();
    for name in KEPT.iter().filter(|name| small(name)) {
        kept.set(name, read.get(name).unwrap_or_default());
    }
    kept
}

fn append(to: OwnedHeaders, headers: &Headers) -> OwnedHeaders {
    headers.iter().fold(to, |list, header| {
        list.insert(KafkaHeader { key: &header.name, value: header.value.as_deref() })
    })
}

/// Bytes of an undecodable record's dead letter in each shape, and whether every foreign header is in it as it was.
#[cfg(test)]
pub(crate) fn sizes_of(
    record: &std::sync::Arc<crate::record::Record>,
    error: crate::record::Undecodable,
) -> [(usize, bool); 4] {
    use rdkafka::message::Headers as _;
    let fallen = Fallen {
        record: std::sync::Arc::clone(record),
        id: record.id(),
        attempt: 1,
        code: error.code.to_owned(),
        class: crate::batch::DECODE,
        text: error.text,
        failed_at: chrono::Utc::now(),
        traceparent: None,
        again: None,
    };
    [Shape::Full, Shape::ShortError, Shape::Pointer, Shape::Bare].map(|shape| {
        let list = headers_of(&fallen, "point", shape);
        let value = record.value.as_ref().filter(|_| shape.has_value()).map_or(0, Vec::len);
        let names = list.iter().map(|header| header.key.len() + header.value.map_or(0, <[u8]>::len));
        let foreign = |name: &str| !name.to_ascii_lowercase().starts_with("waybill-");
        let given = record.headers().iter().filter(|header| foreign(&header.name));
        let given = given.map(|header| (header.name.as_str(), header.value.as_deref()));
        let now = list.iter().filter(|header| foreign(header.key)).map(|header| (header.key, header.value));
        let lead = given.eq(now);
        (value + names.sum::<usize>(), lead)
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::Arc;

    use chrono::Utc;
    use rdkafka::message::Headers as _;
    use waybill_event::{Header, MessageId};

    use super::*;
    use crate::record::Record;

    pub(crate) fn dead(given: Headers, text: &str) -> Fallen {
        let record = Record {
            topic: "orders.v1".into(),
            partition: 3,
            offset: 7,
            timestamp_ms: Some(1),
            key: None,
            value: Some(vec![0; 10]),
            headers: RecordHeaders::Read(given),
        };
        Fallen {
            record: Arc::new(record),
            id: MessageId::new(),
            attempt: 2,
            code: "handler".to_owned(),
            class: "permanent",
            text: text.to_owned(),
            failed_at: Utc::now(),
            traceparent: None,
            again: None,
        }
    }

    fn read(list: &OwnedHeaders) -> Vec<(String, Option<Vec<u8>>)> {
        list.iter().map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec))).collect()
    }

    fn value(list: &OwnedHeaders, name: &str) -> Option<String> {
        let found = read(list).into_iter().find(|(key, _)| key == name)?;
        String::from_utf8(found.1?).ok()
    }

    #[test]
    fn the_originals_headers_stay_in_order_with_duplicates_nulls_and_bytes() {
        let given: Headers =
            [Header::new("a", "1"), Header::null("b"), Header::new("a", vec![0xff]), Header::new("", "x")]
                .into_iter()
                .collect();
        let list = headers_of(&dead(given.clone(), "no"), "point", Shape::Full);
        let expected: Vec<_> = given.into_iter().map(|header| (header.name, header.value)).collect();
        assert_eq!(read(&list)[..4], expected[..]);
        assert_eq!(value(&list, headers::ORIGIN_OFFSET).as_deref(), Some("7"));
        assert_eq!(value(&list, headers::ERROR_MESSAGE).as_deref(), Some("no"));
    }

    #[test]
    fn the_origin_is_set_once_and_the_last_failure_replaced() {
        let mut given = Headers::new();
        given.push(headers::ORIGIN_TOPIC, "first");
        given.push(headers::ORIGIN_OFFSET, "1");
        given.push(headers::FIRST_FAILED_AT, "then");
        given.push(headers::GROUP, "other");
        let list = headers_of(&dead(given, "no"), "point", Shape::Full);
        assert_eq!(value(&list, headers::ORIGIN_TOPIC).as_deref(), Some("first"));
        assert_eq!(value(&list, headers::ORIGIN_OFFSET).as_deref(), Some("1"));
        assert_eq!(value(&list, headers::FIRST_FAILED_AT).as_deref(), Some("then"));
        assert_eq!(value(&list, headers::GROUP).as_deref(), Some("point"));
        assert_eq!(read(&list).iter().filter(|(key, _)| key == headers::GROUP).count(), 1);
    }

    #[test]
    fn smaller_shapes_lose_error_text_then_value_then_foreign_headers() {
        let mut given = Headers::new();
        given.push("big", vec![b'x'; 1_000]);
        given.push(headers::CE_ID, "id");
        let dead = dead(given, &"e".repeat(900));
        let error = |shape| value(&headers_of(&dead, "point", shape), headers::ERROR_MESSAGE).unwrap().len();
        assert_eq!((error(Shape::Full), error(Shape::ShortError)), (900, SHORT_ERROR_BYTES));
        let pointer = headers_of(&dead, "point", Shape::Pointer);
        assert_eq!(value(&pointer, VALUE_BYTES).as_deref(), Some("10"));
        assert!(value(&pointer, "big").is_some());
        let bare = headers_of(&dead, "point", Shape::Bare);
        assert!(value(&bare, "big").is_none());
        assert_eq!(value(&bare, headers::CE_ID).as_deref(), Some("id"));
    }
}
