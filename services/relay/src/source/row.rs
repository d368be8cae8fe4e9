//! One unsent outbox row in memory.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

/// Names a row. A pair, because a failover to a standby that lagged can hand out a `seq` a second time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct RowId {
    /// Place in the order of publication.
    pub(crate) seq: i64,
    /// Message id.
    pub(crate) id: Uuid,
}

/// What order is kept for: a key within a topic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    /// Topic with its prefix.
    pub(crate) topic: Arc<str>,
    /// The record's key.
    pub(crate) key: String,
}

/// An unsent row.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    /// Its name.
    pub(crate) id: RowId,
    /// Bucket of its key.
    pub(crate) bucket: i16,
    /// Topic and key.
    pub(crate) key: Arc<Key>,
    /// `ce_type`.
    pub(crate) r#type: String,
    /// The record's value.
    pub(crate) payload: Vec<u8>,
    /// W3C trace parent of the writing transaction.
    pub(crate) traceparent: Option<String>,
    /// W3C trace state.
    pub(crate) tracestate: Option<String>,
    /// Free headers: an object of strings.
    pub(crate) headers: Option<serde_json::Value>,
    /// When it was written.
    pub(crate) created_at: DateTime<Utc>,
    /// It was dead before, and an operator brought it back.
    pub(crate) retried: bool,
}

impl Row {
    /// About what it costs in memory and in the producer's queue, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        const HEADERS: usize = 512;
        self.payload.len() + self.key.key.len() * 2 + HEADERS
    }
}
