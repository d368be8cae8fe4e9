//! What is sent and answered. Names of topics and groups are without the installation's prefix, unless said otherwise.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;
use waybill_service::http::field;

/// Longest name of a topic or group, in characters: Kafka's bound of topics.
pub const LONGEST_NAME: usize = 249;

/// `GET /internal/consumer`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Subscriptions {
    /// Of this service.
    pub subscriptions: Vec<Subscription>,
}

/// A topic read by a group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Subscription {
    /// Source topic.
    pub topic: String,
    /// Consumer group.
    pub group: String,
    /// `unordered`, `key_ordered` or `partition_ordered`.
    pub order: String,
    /// Delays between attempts.
    pub tiers: Vec<String>,
    /// Whether dead letters may be replayed: `safe`, `reconcile_first` or `never`.
    pub replay_safety: String,
    /// Flood breaker of this process: `closed`, `open` or `stopped`.
    pub breaker: String,
    /// Why it is not closed.
    pub breaker_reason: Option<String>,
    /// Keys that are parked; null when the database does not answer.
    pub parked_keys: Option<i64>,
    /// Messages of theirs; the same.
    pub parked_messages: Option<i64>,
    /// Partitions of this process that make no progress.
    pub blocked: Vec<Blocked>,
}

/// A partition that makes no progress.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Blocked {
    /// The source topic, or one of its retry topics or its replay topic.
    pub topic: String,
    /// Partition.
    pub partition: i32,
    /// Why, as in the metric.
    pub reason: String,
    /// The last error.
    pub error: String,
}

/// Body of `POST /internal/consumer/check`: what would a replay of these messages meet?
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// Source topic.
    #[serde(deserialize_with = "field::text::<1, LONGEST_NAME, _>")]
    #[schema(min_length = 1, max_length = 249)]
    pub topic: String,
    /// Consumer group.
    #[serde(deserialize_with = "field::text::<1, LONGEST_NAME, _>")]
    #[schema(min_length = 1, max_length = 249)]
    pub group: String,
    /// At most 500.
    #[serde(deserialize_with = "field::objects")]
    #[schema(max_items = 500)]
    pub messages: Vec<CheckMessage>,
}

/// A message to be looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CheckMessage {
    /// Its id.
    pub message_id: Uuid,
    /// Its value in base64; null is Kafka's null.
    #[schema(min_length = 0, content_encoding = "base64")]
    pub value: Option<String>,
}

/// Answer to [`Check`], in its order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Checked {
    /// One for each message.
    pub messages: Vec<CheckedMessage>,
}

/// What the group knows of a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CheckedMessage {
    /// Its id.
    pub message_id: Uuid,
    /// State in the inbox; null when the inbox does not know it.
    pub inbox: Option<Inbox>,
    /// The replay that resolved it.
    pub replay_id: Option<Uuid>,
    /// Whether this release can read the value.
    pub decodes: bool,
    /// Stable code when it cannot.
    pub decode_error: Option<String>,
}

/// State of a message in the inbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Inbox {
    /// The effect is committed.
    Done,
    /// Dead-lettered.
    Dead,
}

/// `GET /internal/consumer/keys`: parked keys, the longest parked first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Keys {
    /// One page.
    pub keys: Vec<Key>,
    /// Cursor of the next page; null on the last.
    pub next: Option<String>,
}

/// A key of which a message failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Key {
    /// Source topic.
    pub topic: String,
    /// Consumer group.
    pub group: String,
    /// The key, as `key_encoding` says; of a message without one, the bytes of its id.
    pub key: String,
    /// How `key` is written.
    pub key_encoding: KeyEncoding,
    /// Whether it stands for one message without a key.
    pub keyless: bool,
    /// `waiting` for its next attempt, or `blocked` until it is released.
    pub state: String,
    /// Failed attempts of its first message.
    pub attempts: i32,
    /// Next attempt.
    pub due_at: DateTime<Utc>,
    /// Since when.
    pub parked_at: DateTime<Utc>,
    /// Messages that are parked.
    pub messages: i64,
    /// Id of the message that comes next.
    pub head: Option<Uuid>,
    /// Stable code of its last failure.
    pub error_code: Option<String>,
}

/// How the bytes of a key are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum KeyEncoding {
    /// They are text.
    #[default]
    Utf8,
    /// They are not.
    Base64,
}

/// Body of `POST /internal/consumer/keys/release`: lets a blocked key go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Release {
    /// Source topic.
    #[serde(deserialize_with = "field::text::<1, LONGEST_NAME, _>")]
    #[schema(min_length = 1, max_length = 249)]
    pub topic: String,
    /// Consumer group.
    #[serde(deserialize_with = "field::text::<1, LONGEST_NAME, _>")]
    #[schema(min_length = 1, max_length = 249)]
    pub group: String,
    /// The key, as `key_encoding` says.
    #[schema(min_length = 0)]
    pub key: String,
    /// How `key` is written.
    #[serde(default)]
    pub key_encoding: KeyEncoding,
    /// Whether it stands for one message without a key.
    #[serde(default)]
    pub keyless: bool,
}

/// Answer to [`Release`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Released {
    /// False: there is no such blocked key.
    pub released: bool,
}

/// Body of `POST /internal/consumer/resume`: lets a subscription run again whose breaker was stopped by a flood of
/// permanent failures.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Resume {
    /// Source topic.
    #[serde(deserialize_with = "field::text::<1, LONGEST_NAME, _>")]
    #[schema(min_length = 1, max_length = 249)]
    pub topic: String,
    /// Consumer group.
    #[serde(deserialize_with = "field::text::<1, LONGEST_NAME, _>")]
    #[schema(min_length = 1, max_length = 249)]
    pub group: String,
}

/// Answer to [`Resume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Resumed {
    /// False: in this process it was not stopped.
    pub resumed: bool,
}

/// `GET /internal/tasks`: tasks, newest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Tasks {
    /// One page.
    pub tasks: Vec<Task>,
    /// The next page's `before`; null on the last. That page may turn out to be empty.
    pub next: Option<Uuid>,
}

/// A durable task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Task {
    /// Id.
    pub id: Uuid,
    /// Kind.
    pub kind: String,
    /// Order key.
    pub key: Option<String>,
    /// `pending`, `running`, `done`, `failed` or `cancelled`.
    pub status: String,
    /// Pending: not before. Running: end of the lease.
    pub run_at: DateTime<Utc>,
    /// Attempts so far.
    pub attempts: i32,
    /// When a running task was asked to stop.
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// The trace in which it was enqueued.
    pub traceparent: Option<String>,
    /// Why the last failed attempt failed.
    pub last_error: Option<String>,
    /// When it was enqueued.
    pub created_at: DateTime<Utc>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
}

/// `GET /internal/tasks/{id}/payload`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Payload {
    /// What the handler is given.
    pub payload: serde_json::Value,
}

/// Answer to `POST /internal/tasks/{id}/retry` and `/cancel`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Answer {
    /// What became of it.
    pub verdict: Verdict,
    /// The task's state, when it was refused for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
}

/// What became of a verb.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Pending and due, with all its attempts before it.
    Retried,
    /// Cancelled for good.
    Cancelled,
    /// It is running, was asked to stop, and decides itself.
    Requested,
    /// Not possible in its state.
    Refused,
    /// There is no such task.
    Unknown,
}
