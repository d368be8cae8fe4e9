//! What a dead-letter record says of itself: Waybill's headers first, then Spring's; else it is shown raw.
//!
//! Nothing in a record is an error here: what cannot be understood is unknown.

use chrono::{DateTime, Utc};
use uuid::Uuid;
use waybill_event::trace::TraceContext;
use waybill_event::{Headers, MessageId, Origin, headers, time};

use super::record::{Raw, millis};
use super::spring;

/// Longest text that is taken over for searching, in bytes; the header itself is kept whole.
const MAX_TEXT: usize = 200;
/// Longest error message, in bytes.
const MAX_MESSAGE: usize = 2048;
/// On a dead letter whose value was left out: how many bytes it had.
const VALUE_BYTES: &str = "waybill-value-bytes";
/// Namespace of item ids: UUIDv5 of `console.item` in [`waybill_event::id::NAMESPACE`]. Never changes.
const ITEMS: Uuid = Uuid::from_u128(0x3b0a_52f6_1c1e_5d0b_9a55_2f1f_6a0f_77c4);

/// Whose headers a record has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Ours.
    Waybill,
    /// Spring's `DeadLetterPublishingRecoverer`.
    Spring,
    /// Spring's `@RetryableTopic`.
    SpringRetryable,
    /// Nobody's that is known here.
    Raw,
}

impl Dialect {
    /// As in the database.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waybill => "waybill",
            Self::Spring => "spring",
            Self::SpringRetryable => "spring-retryable",
            Self::Raw => "raw",
        }
    }
}

/// Where a message lay first, as far as it is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Place {
    /// Topic with its prefix.
    pub topic: Option<String>,
    /// Partition.
    pub partition: Option<i32>,
    /// Offset.
    pub offset: Option<i64>,
    /// Record timestamp, milliseconds since 1970.
    pub timestamp_ms: Option<i64>,
}

/// What is known of a failure, in whichever dialect.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) origin: Place,
    pub(super) group: String,
    pub(super) error_code: String,
    pub(super) error_class: String,
    pub(super) error_message: Option<String>,
    pub(super) attempts: Option<i32>,
    pub(super) failed_at: Option<DateTime<Utc>>,
}

/// A dead letter as it is indexed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Letter {
    /// Derived from group, source topic and message id.
    pub item_id: Uuid,
    /// Whose headers it has.
    pub dialect: Dialect,
    /// With prefix; empty when unknown.
    pub group: String,
    /// With prefix; of the dead-letter topic's name when nothing else says it.
    pub source_topic: String,
    /// As the consumer's inbox calls the message.
    pub message_id: Uuid,
    /// `ce_type`, or empty.
    pub event_type: String,
    /// Stable code; Spring: the class of the exception.
    pub error_code: String,
    /// Class, or empty.
    pub error_class: String,
    /// For people.
    pub error_message: Option<String>,
    /// Attempts made.
    pub attempts: Option<i32>,
    /// When it failed; the record's time when nothing says it.
    pub failed_at: DateTime<Utc>,
    /// The replay in which it died.
    pub replay_id: Option<Uuid>,
    /// Replays that it has behind it.
    pub replays: i32,
    /// 32 hex digits.
    pub trace_id: Option<String>,
    /// Where it lay first.
    pub origin: Place,
    /// Its value did not fit the topic.
    pub value_left_out: bool,
}

impl Letter {
    /// Reads a record.
    pub fn read(raw: &Raw) -> Self {
        let all = raw.readable();
        let (dialect, told) = told(&all);
        let source_topic = told.origin.topic.clone().unwrap_or_else(|| stem(&raw.topic).to_owned());
        let message_id = message_id(raw, &all, &told.origin);
        Self {
            item_id: item_id(&told.group, &source_topic, message_id),
            dialect,
            source_topic,
            message_id,
            event_type: text(&all, headers::CE_TYPE).unwrap_or_default(),
            failed_at: told.failed_at.unwrap_or(raw.timestamp),
            replay_id: all.text(headers::REPLAY_ID).and_then(|id| id.parse().ok()),
            replays: number(&all, headers::REPLAY_COUNT).map_or(0, |count: i32| count.clamp(0, 1_000_000)),
            trace_id: TraceContext::from_headers(&all).map(|trace| trace.trace_id().to_owned()),
            value_left_out: all.get(VALUE_BYTES).is_some() && raw.value.is_none(),
            group: told.group,
            error_code: told.error_code,
            error_class: told.error_class,
            error_message: told.error_message,
            attempts: told.attempts,
            origin: told.origin,
        }
    }

    /// The same with nothing in it that came out of the record's headers: for one that the database refuses.
    pub(super) fn unread(raw: &Raw) -> Self {
        Self::read(&Raw { headers: Vec::new(), ..raw.clone() })
    }
}

/// Id of the item that a message is for a group.
#[must_use]
pub fn item_id(group: &str, source_topic: &str, message_id: Uuid) -> Uuid {
    Uuid::new_v5(&ITEMS, format!("{group}\0{source_topic}\0{message_id}").as_bytes())
}

fn told(all: &Headers) -> (Dialect, Told) {
    if all.get(headers::ERROR_CODE).is_some() || all.get(headers::ORIGIN_TOPIC).is_some() {
        return (Dialect::Waybill, waybill(all));
    }
    spring::read(all).unwrap_or((Dialect::Raw, Told::default()))
}

fn waybill(all: &Headers) -> Told {
    Told {
        origin: Place {
            topic: text(all, headers::ORIGIN_TOPIC),
            partition: number(all, headers::ORIGIN_PARTITION),
            offset: number(all, headers::ORIGIN_OFFSET),
            timestamp_ms: number(all, headers::ORIGIN_TIMESTAMP),
        },
        group: text(all, headers::GROUP).unwrap_or_default(),
        error_code: text(all, headers::ERROR_CODE).unwrap_or_default(),
        error_class: text(all, headers::ERROR_CLASS).unwrap_or_default(),
        error_message: all.get(headers::ERROR_MESSAGE).map(|bytes| clean(bytes, MAX_MESSAGE)),
        attempts: number(all, headers::ATTEMPT),
        failed_at: all.text(headers::FAILED_AT).and_then(time::parse).filter(is_storable),
    }
}

/// The consumer's inbox has the same id: by the headers if they can all be read, else by the place alone.
fn message_id(raw: &Raw, all: &Headers, origin: &Place) -> Uuid {
    let place = match (&origin.topic, origin.partition, origin.offset) {
        (Some(topic), Some(partition), Some(offset)) => {
            Origin { topic, partition, offset, timestamp_ms: origin.timestamp_ms }
        }
        _ => Origin {
            topic: &raw.topic,
            partition: raw.partition,
            offset: raw.offset,
            timestamp_ms: Some(raw.timestamp.timestamp_millis()),
        },
    };
    let none = Headers::new();
    MessageId::identify(if raw.is_readable() { all } else { &none }, place).into()
}

/// Of a dead-letter topic's name what is not its suffix.
fn stem(topic: &str) -> &str {
    [".dlt", "-dlt", ".DLT", "-DLT"].iter().find_map(|suffix| topic.strip_suffix(suffix)).unwrap_or(topic)
}

/// A header as a text that the database takes; `None` when it is missing or empty.
pub(super) fn text(all: &Headers, name: &str) -> Option<String> {
    all.get(name).map(|bytes| clean(bytes, MAX_TEXT)).filter(|text| !text.is_empty())
}

/// A longer text, of a message.
pub(super) fn message(all: &Headers, name: &str) -> Option<String> {
    all.get(name).map(|bytes| clean(bytes, MAX_MESSAGE))
}

fn number<T: std::str::FromStr>(all: &Headers, name: &str) -> Option<T> {
    all.text(name)?.trim().parse().ok()
}

/// PostgreSQL's text holds no NUL, and the other control characters are no help to anybody.
fn clean(bytes: &[u8], most: usize) -> String {
    let mut text: String =
        String::from_utf8_lossy(bytes).chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.truncate(text.floor_char_boundary(most));
    text
}

fn is_storable(at: &DateTime<Utc>) -> bool {
    millis(at.timestamp_millis()).is_some()
}

#[cfg(test)]
mod tests {
    use super::super::record::RawHeader;
    use super::*;

    fn raw(topic: &str, list: &[(&str, Option<&[u8]>)]) -> Raw {
        let headers = list
            .iter()
            .map(|(name, value)| RawHeader {
                name: Some((*name).to_owned()),
                value: value.map(<[u8]>::to_vec),
            })
            .collect();
        let timestamp = millis(1_790_000_000_000).unwrap();
        Raw { topic: topic.into(), partition: 1, offset: 7, timestamp, key: None, value: None, headers }
    }

    #[test]
    fn our_own_headers_are_read() {
        let id = Uuid::now_v7();
        let letter = Letter::read(&raw(
            "t.orders.v1.point.dlt",
            &[
                ("ce_id", Some(id.to_string().as_bytes())),
                ("ce_type", Some(b"waybill.order.placed")),
                ("traceparent", Some(b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")),
                ("waybill-origin-topic", Some(b"t.orders.v1")),
                ("waybill-origin-partition", Some(b"3")),
                ("waybill-origin-offset", Some(b"42")),
                ("waybill-group", Some(b"t.point")),
                ("waybill-error-code", Some(b"unknown_customer")),
                ("waybill-error-class", Some(b"permanent")),
                ("waybill-error-message", Some(b"no\0 account")),
                ("waybill-attempt", Some(b"5")),
                ("waybill-replay-count", Some(b"2")),
                ("waybill-failed-at", Some(b"2026-11-30T01:02:03.000000Z")),
            ],
        ));
        assert_eq!((letter.dialect, letter.message_id), (Dialect::Waybill, id));
        assert_eq!((letter.group.as_str(), letter.source_topic.as_str()), ("t.point", "t.orders.v1"));
        assert_eq!((letter.origin.partition, letter.origin.offset), (Some(3), Some(42)));
        assert_eq!((letter.attempts, letter.replays), (Some(5), 2));
        assert_eq!(letter.error_message.as_deref(), Some("no  account"));
        assert_eq!(letter.trace_id.as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        assert_eq!(letter.failed_at, time::parse("2026-11-30T01:02:03Z").unwrap());
        assert_eq!(letter.item_id, item_id("t.point", "t.orders.v1", id));
    }

    #[test]
    fn damage_is_unknown_and_no_error() {
        let long = vec![b'x'; 5_000];
        let letter = Letter::read(&raw(
            "q-dlt",
            &[
                ("waybill-error-code", Some(&long)),
                ("waybill-attempt", Some(b"many")),
                ("waybill-origin-partition", Some(&[0xff])),
                ("waybill-failed-at", Some(b"+262142-01-01T00:00:00Z")),
                ("waybill-replay-id", None),
                ("waybill-replay-count", Some(b"-4")),
                ("traceparent", Some(b"00-zz")),
            ],
        ));
        assert_eq!(letter.error_code.len(), MAX_TEXT);
        assert_eq!((letter.attempts, letter.origin.partition, letter.replay_id), (None, None, None));
        assert_eq!(
            (letter.replays, letter.trace_id, letter.failed_at),
            (0, None, millis(1_790_000_000_000).unwrap())
        );
        let nothing = Letter::read(&raw("q.DLT", &[]));
        assert_eq!((nothing.dialect, nothing.source_topic.as_str()), (Dialect::Raw, "q"));
        // By its place: the same record is the same item, another is another.
        assert_eq!(nothing.item_id, Letter::read(&raw("q.DLT", &[])).item_id);
    }

    #[test]
    fn with_an_unreadable_header_the_place_alone_is_the_identity() {
        let mut record = raw("a.b.dlt", &[("ce_id", Some(Uuid::now_v7().to_string().as_bytes()))]);
        let readable = Letter::read(&record).message_id;
        record.headers.push(RawHeader { name: None, value: None });
        assert_ne!(Letter::read(&record).message_id, readable);
    }
}
