//! What a task is: before it is enqueued, while it runs, and the states between.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;
use uuid::Uuid;
use waybill_event::TraceContext;

/// Id of a task, UUIDv7. The same in every attempt: an idempotency key for calls to others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TaskId(Uuid);

impl TaskId {
    pub(crate) fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The id as a UUID.
    #[must_use]
    pub const fn as_uuid(self) -> Uuid {
        self.0
    }
}

impl From<Uuid> for TaskId {
    fn from(id: Uuid) -> Self {
        Self(id)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// State of a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Waits for its time, for its predecessors or for a worker.
    Pending,
    /// An attempt holds it.
    Running,
    /// Done; purged after a while.
    Done,
    /// Given up after its last attempt, or at once by its handler. Waits for an operator: an alarm.
    Failed,
    /// Ended before it was done, by an operator or by its handler; purged after a while.
    Cancelled,
}

impl Status {
    /// As in the database.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// For `query_as!`: a constraint allows no other text in the column.
impl From<String> for Status {
    fn from(text: String) -> Self {
        match text.as_str() {
            "pending" => Self::Pending,
            "running" => Self::Running,
            "done" => Self::Done,
            "cancelled" => Self::Cancelled,
            _ => Self::Failed,
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A task before it is enqueued.
#[derive(Debug, Clone, PartialEq)]
pub struct New {
    /// Which handler runs it. Not empty.
    pub kind: String,
    /// Order key, over all kinds of the database; `None`: no order. Not empty.
    pub key: Option<String>,
    /// What the handler needs. PostgreSQL takes no NUL character in it.
    pub payload: Value,
    /// Not before this time; `None`: at once, by the database's clock.
    pub run_at: Option<DateTime<Utc>>,
    /// The trace that every attempt continues.
    pub trace: Option<TraceContext>,
}

impl New {
    /// A task without order that is due at once, in the trace of the span that is current now.
    pub fn of(kind: impl Into<String>, payload: Value) -> Self {
        Self { kind: kind.into(), key: None, payload, run_at: None, trace: TraceContext::current() }
    }

    /// The same with an order key.
    #[must_use]
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The same, not before a time.
    #[must_use]
    pub fn run_at(mut self, at: DateTime<Utc>) -> Self {
        self.run_at = Some(at);
        self
    }
}

/// One attempt at a task.
#[derive(Debug, Clone)]
pub struct Running {
    /// Id of the task.
    pub id: TaskId,
    /// Its kind.
    pub kind: String,
    /// Its order key.
    pub key: Option<String>,
    /// Its payload; see also [`Running::decode`].
    pub payload: Value,
    /// Number of this attempt, from 1. Attempts that ended with their process are counted.
    pub attempt: u32,
    /// Proof of this attempt, for writes of one's own that are not made through the [`Guard`](crate::Guard).
    pub token: Uuid,
    /// The trace of who enqueued it. The current span of the handler is a child of it.
    pub trace: Option<TraceContext>,
}

impl Running {
    /// The payload as a type.
    ///
    /// # Errors
    /// It does not fit.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, serde_json::Error> {
        T::deserialize(&self.payload)
    }
}
