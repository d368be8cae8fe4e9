//! The identity of a message: what the inbox calls "the same message", on every hop and for foreign producers too.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Headers, headers};

/// Namespace of every derived id: UUIDv5 of `waybill.message` in the DNS namespace. Never changes: a new one would
/// make every message of a foreign producer look new.
pub const NAMESPACE: Uuid = Uuid::from_u128(0x5ff6ac3c_3b11_53ab_b33f_de8991487587);

/// Id of a message, the same for the first delivery, every retry and every replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MessageId(Uuid);

/// Where a record lies, for messages that carry no id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin<'a> {
    /// Topic, with its prefix.
    pub topic: &'a str,
    /// Partition.
    pub partition: i32,
    /// Offset. Unique only within one life of the topic: a topic made anew counts from 0 again.
    pub offset: i64,
    /// Record timestamp, milliseconds since 1970; tells two lives of a topic apart.
    pub timestamp_ms: Option<i64>,
}

impl MessageId {
    /// A new id, UUIDv7: ordered by time to the millisecond, and in order within this process.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each call gives another id")]
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id of a received message. The first rule that applies:
    ///
    /// 1. `ce_id` is a UUID in any text form: itself. Where `ce_id` is missing, null or empty, the same for Debezium's
    ///    `id`; an `id` that is no UUID is some other header of a foreign producer, and means nothing.
    /// 2. `ce_id` and `ce_source`: UUIDv5 of the bytes `id` 00 *length of source, decimal* 00 *source* *id*.
    /// 3. `ce_id` alone: UUIDv5 of `topic-id` 00 *origin topic* 00 *id*: the same id in two topics is two messages.
    /// 4. no id: UUIDv5 of `origin` 00 *topic* 00 *partition* 00 *offset* 00 *timestamp*, numbers in decimal, no
    ///    timestamp empty.
    ///
    /// The nil and max UUIDs are what broken producers send with every message: they count as no id.
    /// The origin is read from the `waybill-origin-*` headers when topic, partition and offset are all there (later
    /// hops), else it is `origin`. Rule 4 cannot see that a producer sent the same message twice.
    #[must_use]
    pub fn identify(headers: &Headers, origin: Origin<'_>) -> Self {
        let origin = first_origin(headers).unwrap_or(origin);
        let given = |name| headers.get(name).filter(|value| !value.is_empty());
        let uuid = |id: &[u8]| Uuid::try_parse_ascii(id).ok();
        let id = given(headers::CE_ID);
        let known = match id {
            Some(id) => uuid(id),
            None => given(headers::DEBEZIUM_ID).and_then(uuid),
        };
        Self(match (known, id) {
            (Some(uuid), _) if !uuid.is_nil() && !uuid.is_max() => uuid,
            (None, Some(id)) => from_foreign(given(headers::CE_SOURCE), origin.topic, id),
            _ => from_origin(origin),
        })
    }

    /// When the id was made, from a UUIDv7; `None` for other versions.
    #[must_use]
    pub fn time(&self) -> Option<DateTime<Utc>> {
        if self.0.get_version_num() != 7 {
            return None;
        }
        let (seconds, nanos) = self.0.get_timestamp()?.to_unix();
        DateTime::from_timestamp(i64::try_from(seconds).ok()?, nanos)
    }

    /// The UUID itself.
    #[must_use]
    pub const fn as_uuid(&self) -> Uuid {
        self.0
    }
}

impl From<Uuid> for MessageId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl From<MessageId> for Uuid {
    fn from(id: MessageId) -> Self {
        id.0
    }
}

impl FromStr for MessageId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn first_origin(headers: &Headers) -> Option<Origin<'_>> {
    Some(Origin {
        topic: headers.text(headers::ORIGIN_TOPIC).filter(|topic| !topic.is_empty())?,
        partition: headers.text(headers::ORIGIN_PARTITION)?.parse().ok()?,
        offset: headers.text(headers::ORIGIN_OFFSET)?.parse().ok()?,
        timestamp_ms: headers.text(headers::ORIGIN_TIMESTAMP).and_then(|time| time.parse().ok()),
    })
}

fn from_origin(Origin { topic, partition, offset, timestamp_ms }: Origin<'_>) -> Uuid {
    let time = timestamp_ms.map(|time| time.to_string()).unwrap_or_default();
    Uuid::new_v5(&NAMESPACE, format!("origin\0{topic}\0{partition}\0{offset}\0{time}").as_bytes())
}

fn from_foreign(source: Option<&[u8]>, topic: &str, id: &[u8]) -> Uuid {
    let name = match source {
        Some(source) => [format!("id\0{}\0", source.len()).as_bytes(), source, id].concat(),
        None => [format!("topic-id\0{topic}\0").as_bytes(), id].concat(),
    };
    Uuid::new_v5(&NAMESPACE, &name)
}
