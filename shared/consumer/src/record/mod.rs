//! A record as it lies in Kafka, owned: nothing in it keeps the client's memory or the consumer alive.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, LazyLock},
    time::Duration,
};

use chrono::{DateTime, Utc};
use rdkafka::message::{BorrowedMessage, Headers as _, Message as _, OwnedHeaders};
use waybill_event::{Event, Header, Headers, MessageId, Origin, headers};

use crate::{
    line::{JITTER_MAX, Kind},
    message::Message,
};

pub(crate) struct Record {
    pub(crate) topic: Arc<str>,
    pub(crate) partition: i32,
    pub(crate) offset: i64,
    pub(crate) timestamp_ms: Option<i64>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) headers: RecordHeaders,
}

/// Headers as far as they can be read.
pub(crate) enum RecordHeaders {
    Read(Headers),
    /// A name is not UTF-8. The client library panics on reading it, so the list is only carried on whole.
    Opaque {
        whole: OwnedHeaders,
        /// Of those that can be read, and a guess for the others.
        bytes: usize,
    },
}

/// What the hop before wrote down.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Hop {
    /// Attempts made so far.
    pub(crate) attempts: u32,
    pub(crate) first_failed: Option<DateTime<Utc>>,
}

/// Why a record never becomes a message.
#[derive(Debug)]
pub(crate) struct Undecodable {
    pub(crate) code: &'static str,
    pub(crate) text: String,
    /// Another release may know the schema: worth waiting for, for a while.
    pub(crate) unknown_schema: bool,
}

impl Record {
    pub(crate) fn copy(message: &BorrowedMessage<'_>, topic: Arc<str>) -> Self {
        Self {
            topic,
            partition: message.partition(),
            offset: message.offset(),
            timestamp_ms: message.timestamp().to_millis(),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: message.headers().map_or_else(|| RecordHeaders::Read(Headers::new()), read_headers),
        }
    }

    /// The headers, empty when they cannot be read.
    pub(crate) fn headers(&self) -> &Headers {
        static NONE: LazyLock<Headers> = LazyLock::new(Headers::new);
        match &self.headers {
            RecordHeaders::Read(headers) => headers,
            RecordHeaders::Opaque { .. } => &NONE,
        }
    }

    /// Believed only on a retry topic, which nobody but this group writes: on the source a foreign header must not make
    /// an attempt the last one, and a replay begins anew. What cannot be read counts as nothing.
    pub(crate) fn hop(&self, kind: Kind) -> Hop {
        let Kind::Retry(_) = kind else { return Hop::default() };
        let headers = self.headers();
        let attempts = headers.text(headers::ATTEMPT).and_then(|text| text.parse().ok());
        let first_failed = headers.text(headers::FIRST_FAILED_AT).and_then(waybill_event::time::parse);
        Hop { attempts: attempts.unwrap_or(0), first_failed }
    }

    /// How long the record must still wait, by this machine's clock and never longer than the delay of its topic: no
    /// clock that is wrong, here or where the record was written, holds it for ever.
    pub(crate) fn wait(&self, delay: Duration, now: DateTime<Utc>) -> Duration {
        let due = self.headers().text(headers::DUE_AT).and_then(waybill_event::time::parse);
        // Without a due time the whole delay: late is better than early.
        due.map_or(delay, |due| (due - now).to_std().unwrap_or_default().min(delay + JITTER_MAX))
    }

    pub(crate) fn id(&self) -> MessageId {
        let origin = Origin {
            topic: &self.topic,
            partition: self.partition,
            offset: self.offset,
            timestamp_ms: self.timestamp_ms,
        };
        MessageId::identify(self.headers(), origin)
    }

    /// Bytes held, for the bounds of the buffers.
    pub(crate) fn size(&self) -> usize {
        const RECORD: usize = 256;
        let bytes = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let headers = match &self.headers {
            RecordHeaders::Read(headers) => headers
                .iter()
                .map(|header| size_of::<Header>() + header.name.len() + bytes(&header.value))
                .sum(),
            RecordHeaders::Opaque { bytes, .. } => *bytes,
        };
        RECORD + bytes(&self.key) + bytes(&self.value) + headers
    }

    pub(crate) fn decode<E: Event>(self: &Arc<Self>) -> Result<Message<E>, Undecodable> {
        if let RecordHeaders::Opaque { .. } = self.headers {
            let text = "a header name is not UTF-8".to_owned();
            return Err(Undecodable { code: "header_name", text, unknown_schema: false });
        }
        let event = decode_value::<E>(self.value.as_deref())?;
        Ok(Message::decoded(event, self.id(), Arc::clone(self)))
    }
}

pub(crate) fn decode_value<E: Event>(value: Option<&[u8]>) -> Result<E, Undecodable> {
    // A tombstone has no event; the codec sees only bytes.
    let value = value.ok_or(waybill_event::DecodeError::Null);
    // The codec promises not to panic; a partition must not depend on it for every type that is ever read.
    let Ok(decoded) = catch_unwind(|| value.and_then(waybill_event::decode::<E>)) else {
        let text = "decoding panicked".to_owned();
        return Err(Undecodable { code: "decode_panic", text, unknown_schema: false });
    };
    decoded.map_err(|error| Undecodable {
        code: error.code(),
        text: error.to_string(),
        unknown_schema: error.is_unknown_schema(),
    })
}

/// Names the record and never shows its content.
impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]@{}", self.topic, self.partition, self.offset)
    }
}

fn read_headers(headers: &rdkafka::message::BorrowedHeaders) -> RecordHeaders {
    let read = catch_unwind(AssertUnwindSafe(|| {
        headers
            .iter()
            .map(|header| Header { name: header.key.to_owned(), value: header.value.map(<[u8]>::to_vec) })
            .collect::<Headers>()
    }));
    read.map_or_else(
        |_| RecordHeaders::Opaque { whole: headers.detach(), bytes: readable_bytes(headers) },
        RecordHeaders::Read,
    )
}

fn readable_bytes(headers: &rdkafka::message::BorrowedHeaders) -> usize {
    const UNREADABLE: usize = 1 << 10;
    let size = |index| {
        let read = AssertUnwindSafe(|| headers.try_get(index));
        let header = catch_unwind(read).ok().flatten();
        header.map_or(UNREADABLE, |header| header.key.len() + header.value.map_or(0, <[u8]>::len))
    };
    (0..headers.count()).map(size).sum()
}

#[cfg(test)]
mod tests;
