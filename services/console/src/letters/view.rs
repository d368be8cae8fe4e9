//! Dead letters as the API shows them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use uuid::Uuid;

use crate::State;

/// How many dead letters are in which state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Counts {
    /// Nobody has done anything about them.
    pub open: i64,
    /// A running replay holds them.
    pub planned: i64,
    /// Replayed, without outcome yet.
    pub sent: i64,
    /// Died again in a replay.
    pub failed_again: i64,
    /// Handled in a replay.
    pub resolved: i64,
    /// The consumer had finished with them before.
    pub already_processed: i64,
    /// Put away.
    pub archived: i64,
}

impl Counts {
    /// Adds to a state.
    pub fn add(&mut self, state: State, count: i64) {
        *match state {
            State::Open => &mut self.open,
            State::Planned => &mut self.planned,
            State::Sent => &mut self.sent,
            State::FailedAgain => &mut self.failed_again,
            State::Resolved => &mut self.resolved,
            State::AlreadyProcessed => &mut self.already_processed,
            State::Archived => &mut self.archived,
        } += count;
    }

    /// In the states in which somebody still has to do or say something.
    #[must_use]
    pub const fn unsettled(&self) -> i64 {
        self.open + self.planned + self.sent + self.failed_again
    }
}

/// A dead-letter topic.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Topic {
    /// Name with the prefix.
    pub topic: String,
    /// Consumer groups that failed.
    pub groups: Vec<String>,
    /// Partitions; null when the broker does not know the topic any more.
    pub partitions: Option<i32>,
    /// Dead letters by state.
    pub counts: Counts,
    /// In a state in which somebody still has to do or say something.
    pub unsettled: i64,
    /// When the oldest of these died.
    pub oldest_at: Option<DateTime<Utc>>,
    /// Its age, in seconds.
    pub oldest_age_s: Option<i64>,
    /// How long the topic keeps a record; null: for ever, or unknown.
    pub retention_s: Option<i64>,
    /// Until the topic may delete the oldest unsettled one, in seconds; 0 when it may be gone already.
    pub deletes_in_s: Option<i64>,
    /// Arrived in the last full hour and the one that runs.
    pub arrived_last_hour: i64,
    /// Arrived in the last 24 hours.
    pub arrived_last_day: i64,
    /// Error code of the newest group.
    pub newest_error_code: Option<String>,
}

/// Every dead-letter topic.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Topics {
    /// Those with the most unsettled letters first.
    pub topics: Vec<Topic>,
}

/// Arrivals of an hour.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Hour {
    /// Its beginning.
    pub hour: DateTime<Utc>,
    /// Dead letters.
    pub arrived: i64,
}

/// Dead letters of one cause.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Group {
    /// Dead-letter topic.
    pub topic: String,
    /// Consumer group that failed; empty when nothing says it.
    pub consumer_group: String,
    /// Topic that the messages came from.
    pub source_topic: String,
    /// Stable code.
    pub error_code: String,
    /// Class.
    pub error_class: String,
    /// Event type.
    pub event_type: String,
    /// Messages by state.
    pub counts: Counts,
    /// In a state in which somebody still has to do or say something.
    pub unsettled: i64,
    /// First dead letter of the group.
    pub first_seen: DateTime<Utc>,
    /// Latest.
    pub last_seen: DateTime<Utc>,
    /// Hours of the last day in which letters arrived.
    pub hours: Vec<Hour>,
}

/// Groups, those with the most unsettled letters first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Groups {
    /// At most 1,000.
    pub groups: Vec<Group>,
}

/// A dead letter in a list.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Item {
    /// Stable, also when the index is built anew.
    pub item_id: Uuid,
    /// State.
    pub state: State,
    /// Dead-letter topic of the latest letter.
    pub topic: String,
    /// Consumer group that failed.
    pub consumer_group: String,
    /// Topic that the message came from.
    pub source_topic: String,
    /// As the consumer's inbox calls it.
    pub message_id: Uuid,
    /// As text, else `base64:` and base64; null is Kafka's null.
    pub key: Option<String>,
    /// Event type.
    pub event_type: String,
    /// Stable code of the latest failure.
    pub error_code: String,
    /// Class of the latest failure.
    pub error_class: String,
    /// Attempts of the latest failure.
    pub attempts: Option<i32>,
    /// Dead letters of this message.
    pub deaths: i32,
    /// Replays so far.
    pub replays: i32,
    /// Time of the latest dead letter.
    pub dead_at: DateTime<Utc>,
    /// Time of the first.
    pub first_dead_at: DateTime<Utc>,
    /// Partition of the first delivery.
    pub origin_partition: Option<i32>,
    /// Offset of the first delivery.
    pub origin_offset: Option<i64>,
    /// Trace.
    pub trace_id: Option<String>,
    /// Bytes of the value; null is Kafka's null.
    pub value_bytes: Option<i32>,
    /// The latest replay.
    pub replay_id: Option<Uuid>,
    /// When it was sent last.
    pub sent_at: Option<DateTime<Utc>>,
    /// Sent, and how long there has been no outcome, in seconds.
    pub waiting_s: Option<i64>,
    /// Why it was put away.
    pub archived_reason: Option<String>,
}

/// A page of dead letters, newest first.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Items {
    /// What is on the page.
    pub items: Vec<Item>,
    /// Cursor of the next page; null on the last.
    #[schema(required = true)]
    pub next: Option<String>,
}

/// How a header's value is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// As it is.
    Utf8,
    /// Bytes that are no text.
    Base64,
    /// Kafka's null, which is not empty.
    Null,
    /// Its name is no text: neither name nor value can be read.
    Unreadable,
}

/// A header, at its place.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Header {
    /// Name.
    pub name: Option<String>,
    /// Value, as `encoding` says.
    pub value: Option<String>,
    /// How the value is written.
    pub encoding: Encoding,
    /// The number in it, when it is Spring's in binary.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub number: Option<i64>,
}

/// A value.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Payload {
    /// `null`, `empty`, `bytes`, or `left_out` when it did not fit the topic.
    pub kind: String,
    /// Size.
    pub bytes: Option<i32>,
    /// Not shown: the token lacks the role `payload`.
    pub masked: bool,
    /// The event, of a topic whose schema is known here.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub decoded: Option<Value>,
    /// Why it cannot be decoded.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub decode_error: Option<String>,
    /// Lower-case hex, of the first 4 KiB.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hex: Option<String>,
    /// All of it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub base64: Option<String>,
}

/// One dead letter of a message.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Death {
    /// Dead-letter topic.
    pub topic: String,
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Whose headers it has: `waybill`, `spring`, `spring-retryable`, `raw`.
    pub dialect: String,
    /// Time of the record.
    pub dead_at: DateTime<Utc>,
    /// Time of the failure.
    pub failed_at: DateTime<Utc>,
    /// Stable code.
    pub error_code: String,
    /// Class.
    pub error_class: String,
    /// For people; masked by the consumer.
    pub error_message: Option<String>,
    /// Attempts made.
    pub attempts: Option<i32>,
    /// The replay in which it died.
    pub replay_id: Option<Uuid>,
}

/// One replay of a message.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Sending {
    /// The run.
    pub replay_id: Uuid,
    /// What became of the message in it.
    pub state: String,
    /// Why.
    pub detail: Option<String>,
    /// When Kafka acknowledged it.
    pub sent_at: Option<DateTime<Utc>>,
    /// When its outcome came.
    pub settled_at: Option<DateTime<Utc>>,
}

/// A dead letter with everything that is known of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Detail {
    /// As in lists.
    #[serde(flatten)]
    pub item: Item,
    /// Topic of the first delivery, when a header says it.
    pub origin_topic: Option<String>,
    /// Record timestamp of the first delivery.
    pub origin_timestamp: Option<DateTime<Utc>>,
    /// Headers of the latest dead letter, in order.
    pub headers: Vec<Header>,
    /// Value of the latest dead letter.
    pub payload: Payload,
    /// Its dead letters, latest first.
    pub history: Vec<Death>,
    /// Its replays, latest first.
    pub sendings: Vec<Sending>,
    /// Page of its trace.
    pub trace_url: Option<String>,
    /// The same on the command line.
    pub command: String,
}
