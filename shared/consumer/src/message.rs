//! What a handler is given: the decoded event and where it came from.

use std::{fmt, sync::Arc};

use chrono::{DateTime, Utc};
use waybill_event::{Event, Headers, MessageId, TraceContext};

use crate::record::{Hop, Record, RecordHeaders};

/// One message of a topic, decoded.
pub struct Message<E> {
    /// The decoded event.
    pub event: E,
    /// Identity, the same for every copy of the message; the inbox has seen it at most once.
    pub id: MessageId,
    /// `ce_type`, or the event's own type when the header is missing or no text.
    pub event_type: String,
    /// Trace context of the transaction that wrote the message; `None` when it carries no valid one.
    pub trace: Option<TraceContext>,
    /// Number of this attempt, from 1. Lost connections and the runtime's own errors are not counted.
    pub attempt: u32,
    /// When handling failed first, on a later hop.
    pub(crate) first_failed: Option<DateTime<Utc>>,
    /// Span of the attempt before this one, where no header says it.
    pub(crate) last_attempt: Option<String>,
    record: Arc<Record>,
}

impl<E> Message<E> {
    /// Key bytes as received; `None` is Kafka's null key.
    #[must_use]
    pub fn key(&self) -> Option<&[u8]> {
        self.record.key.as_deref()
    }

    /// The key as text; `None` when it is null or not UTF-8.
    #[must_use]
    pub fn key_text(&self) -> Option<&str> {
        std::str::from_utf8(self.key()?).ok()
    }

    /// Topic it was read from, with the installation's prefix.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.record.topic
    }

    /// Partition it was read from.
    #[must_use]
    pub fn partition(&self) -> i32 {
        self.record.partition
    }

    /// Offset it was read from.
    #[must_use]
    pub fn offset(&self) -> i64 {
        self.record.offset
    }

    /// Record timestamp, to the millisecond; `None` when the topic has none.
    #[must_use]
    pub fn timestamp(&self) -> Option<DateTime<Utc>> {
        self.record.timestamp_ms.and_then(DateTime::from_timestamp_millis)
    }

    /// All headers, in the order received.
    #[must_use]
    pub fn headers(&self) -> &Headers {
        self.record.headers()
    }

    /// On a retry topic: counts on where the hop before ended.
    pub(crate) fn after(mut self, hop: Hop) -> Self {
        (self.attempt, self.first_failed) = (hop.attempts.saturating_add(1), hop.first_failed);
        self
    }

    pub(crate) fn record(&self) -> &Arc<Record> {
        &self.record
    }
}

impl<E: Event> Message<E> {
    /// A message that never was in Kafka, for tests with the [`Harness`](crate::harness::Harness): a new id, the
    /// event's own topic, key and type, partition 0 and offset 0.
    #[must_use]
    pub fn new(event: E) -> Self {
        let record = Record {
            topic: E::TOPIC.into(),
            partition: 0,
            offset: 0,
            timestamp_ms: Some(Utc::now().timestamp_millis()),
            key: Some(event.key().into_bytes()),
            value: waybill_event::encode(&event).ok(),
            headers: RecordHeaders::Read(Headers::new()),
        };
        Self::decoded(event, MessageId::new(), Arc::new(record))
    }

    /// The same message under the given id.
    #[must_use]
    pub fn with_id(mut self, id: MessageId) -> Self {
        self.id = id;
        self
    }

    /// The same message in the given trace.
    #[must_use]
    pub fn with_trace(mut self, trace: TraceContext) -> Self {
        self.trace = Some(trace);
        self
    }

    /// The same message with one header more; id, type and trace stay as they are.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        // Nobody else holds a record that was just made.
        if let Some(Record { headers: RecordHeaders::Read(headers), .. }) = Arc::get_mut(&mut self.record) {
            headers.push(name, value);
        }
        self
    }

    pub(crate) fn decoded(event: E, id: MessageId, record: Arc<Record>) -> Self {
        let headers = record.headers();
        let event_type = match headers.text(waybill_event::headers::CE_TYPE) {
            Some(given) => given.to_owned(),
            None => event.event_type(),
        };
        let trace = TraceContext::from_headers(headers);
        Self { event, id, event_type, trace, attempt: 1, first_failed: None, last_attempt: None, record }
    }
}

/// Names the message and never shows its content.
impl<E> fmt::Debug for Message<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Message")
            .field("id", &self.id)
            .field("event_type", &self.event_type)
            .field("record", &self.record)
            .field("attempt", &self.attempt)
            .finish_non_exhaustive()
    }
}
