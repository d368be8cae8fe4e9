//! Message headers: an ordered list with duplicates, as Kafka has it, and the name of every header Waybill knows.

/// Message id (CloudEvents Kafka binding, binary mode).
pub const CE_ID: &str = "ce_id";
/// Event type, for example `waybill.order.placed`.
pub const CE_TYPE: &str = "ce_type";
/// Where the event was written, for example `/order`.
pub const CE_SOURCE: &str = "ce_source";
/// CloudEvents version, always [`SPECVERSION`].
pub const CE_SPECVERSION: &str = "ce_specversion";
/// When the event was written, in the form of [`crate::time::ce_time`].
pub const CE_TIME: &str = "ce_time";
/// Aggregate id.
pub const CE_SUBJECT: &str = "ce_subject";
/// Media type of the value, [`AVRO`].
pub const CONTENT_TYPE: &str = "content-type";
/// W3C trace context of the transaction that wrote the event; never rewritten.
pub const TRACEPARENT: &str = "traceparent";
/// W3C vendor part of the trace context.
pub const TRACESTATE: &str = "tracestate";
/// Debezium's name for the message id, read only where [`CE_ID`] is missing.
pub const DEBEZIUM_ID: &str = "id";

/// Topic of the first delivery; this and the other origin headers are set once.
pub const ORIGIN_TOPIC: &str = "waybill-origin-topic";
/// Partition of the first delivery, decimal.
pub const ORIGIN_PARTITION: &str = "waybill-origin-partition";
/// Offset of the first delivery, decimal.
pub const ORIGIN_OFFSET: &str = "waybill-origin-offset";
/// Record timestamp of the first delivery, milliseconds since 1970, decimal.
pub const ORIGIN_TIMESTAMP: &str = "waybill-origin-timestamp";
/// When handling failed first; set once.
pub const FIRST_FAILED_AT: &str = "waybill-first-failed-at";

/// Consumer group whose handling failed.
pub const GROUP: &str = "waybill-group";
/// Number of attempts made, decimal.
pub const ATTEMPT: &str = "waybill-attempt";
/// Earliest time of the next attempt.
pub const DUE_AT: &str = "waybill-due-at";
/// Stable code of the last failure.
pub const ERROR_CODE: &str = "waybill-error-code";
/// Class of the last failure.
pub const ERROR_CLASS: &str = "waybill-error-class";
/// Text of the last failure, masked, at most [`MAX_ERROR_MESSAGE_BYTES`].
pub const ERROR_MESSAGE: &str = "waybill-error-message";
/// When handling failed last.
pub const FAILED_AT: &str = "waybill-failed-at";
/// `traceparent` of the failed attempt's span.
pub const LAST_TRACEPARENT: &str = "waybill-last-traceparent";

/// Id of the replay that sent this record.
pub const REPLAY_ID: &str = "waybill-replay-id";
/// Who ordered the replay.
pub const REPLAYED_BY: &str = "waybill-replayed-by";
/// How often the message was replayed, decimal.
pub const REPLAY_COUNT: &str = "waybill-replay-count";

/// Value of [`CE_SPECVERSION`].
pub const SPECVERSION: &str = "1.0";
/// Value of [`CONTENT_TYPE`].
pub const AVRO: &str = "application/avro";
/// Bound of [`ERROR_MESSAGE`], in bytes.
pub const MAX_ERROR_MESSAGE_BYTES: usize = 1024;

/// One header. A null value is not an empty one, and both survive every hop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Name as received; compared without regard to ASCII case.
    pub name: String,
    /// Value as received; `None` is Kafka's null.
    pub value: Option<Vec<u8>>,
}

impl Header {
    /// A header with a value.
    pub fn new(name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self { name: name.into(), value: Some(value.into()) }
    }

    /// A header whose value is null.
    pub fn null(name: impl Into<String>) -> Self {
        Self { name: name.into(), value: None }
    }

    fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

/// Headers in the order received, duplicates kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<Header>);

impl Headers {
    /// No headers.
    #[must_use]
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The last value of that name which is not null.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.0.iter().rev().filter(|header| header.is(name)).find_map(|header| header.value.as_deref())
    }

    /// [`get`](Self::get) as text; `None` also when that value is not UTF-8 (an earlier one is then not used).
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        std::str::from_utf8(self.get(name)?).ok()
    }

    /// Appends, whether or not the name is there already.
    pub fn push(&mut self, name: impl Into<String>, value: impl Into<Vec<u8>>) {
        self.0.push(Header::new(name, value));
    }

    /// Makes this the only header of its name: at the place of the first one, else at the end.
    pub fn set(&mut self, name: &str, value: impl Into<Vec<u8>>) {
        let new = Header::new(name, value);
        let Some(at) = self.0.iter().position(|header| header.is(name)) else {
            self.0.push(new);
            return;
        };
        self.0[at] = new;
        let mut index = 0;
        self.0.retain(|header| {
            index += 1;
            index <= at + 1 || !header.is(name)
        });
    }

    /// Removes every header of that name.
    pub fn remove(&mut self, name: &str) {
        self.0.retain(|header| !header.is(name));
    }

    /// All headers, in order, nulls and duplicates included.
    pub fn iter(&self) -> std::slice::Iter<'_, Header> {
        self.0.iter()
    }

    /// Number of headers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<Header> for Headers {
    fn from_iter<I: IntoIterator<Item = Header>>(headers: I) -> Self {
        Self(headers.into_iter().collect())
    }
}

impl Extend<Header> for Headers {
    fn extend<I: IntoIterator<Item = Header>>(&mut self, headers: I) {
        self.0.extend(headers);
    }
}

impl IntoIterator for Headers {
    type Item = Header;
    type IntoIter = std::vec::IntoIter<Header>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a Headers {
    type Item = &'a Header;
    type IntoIter = std::slice::Iter<'a, Header>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
