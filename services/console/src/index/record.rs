//! A record of a dead-letter topic as it lies there, owned.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use rdkafka::message::{BorrowedHeaders, BorrowedMessage, Headers as _, Message as _};
use serde_json::Value;
use waybill_event::{Header, Headers};

/// End of the year 9999: later times are taken for none.
const LAST_MS: i64 = 253_402_300_799_999;

/// One header; `name` is `None` when it cannot be read, and then neither can the value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RawHeader {
    /// Name.
    pub name: Option<String>,
    /// Value; `None` is Kafka's null.
    pub value: Option<Vec<u8>>,
}

/// A record.
#[derive(Clone)]
pub struct Raw {
    /// Topic with its prefix.
    pub topic: String,
    /// Partition.
    pub partition: i32,
    /// Offset.
    pub offset: i64,
    /// Record timestamp; 1970 when it has none, so that a redelivery has the same.
    pub timestamp: DateTime<Utc>,
    /// Key; `None` is null.
    pub key: Option<Vec<u8>>,
    /// Value; `None` is null.
    pub value: Option<Vec<u8>>,
    /// Headers in their order, duplicates included.
    pub headers: Vec<RawHeader>,
}

/// Names the record and never shows its content.
impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}[{}]@{}", self.topic, self.partition, self.offset)
    }
}

impl Raw {
    /// A copy of what the client holds.
    pub(crate) fn of(message: &BorrowedMessage<'_>) -> Self {
        let timestamp = message.timestamp().to_millis().and_then(millis);
        Self {
            topic: message.topic().to_owned(),
            partition: message.partition(),
            offset: message.offset(),
            timestamp: timestamp.unwrap_or(DateTime::UNIX_EPOCH),
            key: message.key().map(<[u8]>::to_vec),
            value: message.payload().map(<[u8]>::to_vec),
            headers: message.headers().map_or_else(Vec::new, read),
        }
    }

    /// Bytes held.
    pub(super) fn size(&self) -> usize {
        let bytes = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        let header = |h: &RawHeader| 64 + h.name.as_ref().map_or(0, String::len) + bytes(&h.value);
        256 + bytes(&self.key) + bytes(&self.value) + self.headers.iter().map(header).sum::<usize>()
    }

    /// Bytes of the value; `None` is null.
    pub(super) fn value_bytes(&self) -> Option<i32> {
        self.value.as_ref().map(|value| i32::try_from(value.len()).unwrap_or(i32::MAX))
    }

    /// Whether every header can be read.
    pub(super) fn is_readable(&self) -> bool {
        self.headers.iter().all(|header| header.name.is_some())
    }

    /// The headers that can be read.
    pub(super) fn readable(&self) -> Headers {
        let known = self
            .headers
            .iter()
            .filter_map(|header| Some(Header { name: header.name.clone()?, value: header.value.clone() }));
        known.collect()
    }
}

/// Milliseconds since 1970, if they are a time that everything on the way can hold.
pub(super) fn millis(ms: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(ms).filter(|_| (0..=LAST_MS).contains(&ms))
}

/// The client library panics on a name that is not UTF-8: such a header is only known to be there.
fn read(headers: &BorrowedHeaders) -> Vec<RawHeader> {
    let one = |index| {
        let header = catch_unwind(AssertUnwindSafe(|| {
            headers.try_get(index).map(|header| (header.key.to_owned(), header.value.map(<[u8]>::to_vec)))
        }));
        match header {
            Ok(Some((name, value))) => RawHeader { name: Some(name), value },
            Ok(None) | Err(_) => RawHeader { name: None, value: None },
        }
    };
    (0..headers.count()).map(one).collect()
}

/// Headers as the database keeps them: `[[name or null, base64 or null], …]`.
pub(crate) fn to_json(headers: &[RawHeader]) -> Value {
    headers
        .iter()
        .map(|header| {
            let value = header.value.as_ref().map(|value| STANDARD.encode(value));
            Value::from(vec![Value::from(header.name.clone()), Value::from(value)])
        })
        .collect()
}

/// What [`to_json`] wrote.
pub(crate) fn from_json(json: &Value) -> Vec<RawHeader> {
    let one = |pair: &Value| RawHeader {
        name: pair[0].as_str().map(str::to_owned),
        value: pair[1].as_str().and_then(|text| STANDARD.decode(text).ok()),
    };
    json.as_array().map_or_else(Vec::new, |list| list.iter().map(one).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_from_the_database_as_they_were() {
        let header = |name: Option<&str>, value: Option<&[u8]>| RawHeader {
            name: name.map(str::to_owned),
            value: value.map(<[u8]>::to_vec),
        };
        let headers = vec![
            header(Some("a"), Some(b"1")),
            header(Some("a"), Some(b"")),
            header(Some("b\0"), None),
            header(Some(""), Some(&[0xff, 0])),
            header(None, None),
        ];
        assert_eq!(from_json(&to_json(&headers)), headers);
    }
}
