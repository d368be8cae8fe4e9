//! What the services' `/internal` API says. Read tolerantly: what a newer service adds is ignored.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

/// Whether a message may simply be handled again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReplaySafety {
    /// It may.
    Safe,
    /// Somebody has to compare with the outside first.
    ReconcileFirst,
    /// Never: the group refuses.
    Never,
}

/// A partition that makes no progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Blocked {
    /// Topic.
    pub topic: String,
    /// Partition.
    pub partition: i32,
    /// Why.
    pub reason: String,
    /// The latest error.
    #[serde(default)]
    pub error: Option<String>,
}

/// A subscription of a service. Names are without the installation's prefix.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Subscription {
    /// Source topic.
    pub topic: String,
    /// Consumer group.
    pub group: String,
    /// `unordered`, `key_ordered` or `partition_ordered`.
    pub order: String,
    /// Delays of the retry topics.
    #[serde(default)]
    pub tiers: Vec<String>,
    /// Whether replays are safe.
    pub replay_safety: ReplaySafety,
    /// `closed`, `open` or `stopped`.
    pub breaker: String,
    /// Why it is not closed.
    #[serde(default)]
    pub breaker_reason: Option<String>,
    /// Keys that are parked; null while the service's database does not answer.
    #[serde(default)]
    pub parked_keys: Option<i64>,
    /// Messages behind them; the same.
    #[serde(default)]
    pub parked_messages: Option<i64>,
    /// Partitions that make no progress.
    #[serde(default)]
    pub blocked: Vec<Blocked>,
}

/// `GET /internal/consumer`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Subscriptions {
    /// Of this service.
    pub subscriptions: Vec<Subscription>,
}

/// `POST /internal/consumer/check`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Check {
    /// Source topic.
    pub topic: String,
    /// Consumer group.
    pub group: String,
    /// At most 500.
    pub messages: Vec<CheckMessage>,
}

/// A message to be judged.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckMessage {
    /// Message id.
    pub message_id: Uuid,
    /// Base64; null is Kafka's null.
    pub value: Option<String>,
}

/// The answer to [`Check`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Checked {
    /// One for each message.
    pub messages: Vec<CheckedMessage>,
}

/// What the service knows of a message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckedMessage {
    /// Message id.
    pub message_id: Uuid,
    /// `done`, `dead`, or nothing.
    #[serde(default)]
    pub inbox: Option<String>,
    /// The replay that is noted there.
    #[serde(default)]
    pub replay_id: Option<Uuid>,
    /// Whether the service can read the value.
    pub decodes: bool,
    /// Stable code.
    #[serde(default)]
    pub decode_error: Option<String>,
}

/// A parked key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Source topic.
    pub topic: String,
    /// Consumer group.
    pub group: String,
    /// As `key_encoding` says.
    pub key: String,
    /// `utf8` or `base64`.
    #[serde(default)]
    pub key_encoding: Option<String>,
    /// One message without key.
    #[serde(default)]
    pub keyless: bool,
    /// `waiting` or `blocked`.
    pub state: String,
    /// Attempts of the head.
    #[serde(default)]
    pub attempts: i32,
    /// Next attempt.
    #[serde(default)]
    pub due_at: Option<DateTime<Utc>>,
    /// Since when.
    #[serde(default)]
    pub parked_at: Option<DateTime<Utc>>,
    /// Messages behind it.
    #[serde(default)]
    pub messages: i64,
}

/// `GET /internal/consumer/keys`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Keys {
    /// One page.
    pub keys: Vec<Key>,
    /// Cursor.
    #[serde(default)]
    pub next: Option<String>,
}

/// `GET /internal/tasks`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Tasks {
    /// As the service lists them.
    pub tasks: Vec<Value>,
    /// Cursor.
    #[serde(default)]
    pub next: Option<Value>,
}
