//! `dlt.outcomes.v1`: what became of replayed messages.

use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::{Codec, Event};

/// Values of [`ReplayOutcome::outcome`]. An open set.
pub mod kind {
    /// This replay's handling is committed.
    pub const RESOLVED: &str = "resolved";
    /// The group had finished with the message before, without this replay.
    pub const ALREADY_PROCESSED: &str = "already_processed";
}

/// What became of one message of one replay. A replay that failed again is not told here: it is a new dead letter
/// that carries the replay's id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayOutcome {
    /// Id of the message, also the message key.
    pub message_id: Uuid,
    /// Id of the replay that carried it.
    pub replay_id: Uuid,
    /// Group that handled it, with the installation's prefix.
    pub consumer_group: String,
    /// Source topic of the subscription, with the installation's prefix.
    pub topic: String,
    /// See [`kind`].
    pub outcome: String,
    /// When it was told. Times are written to the microsecond.
    #[serde(with = "chrono::serde::ts_microseconds")]
    pub occurred_at: DateTime<Utc>,
}

static CODEC: LazyLock<Codec> = LazyLock::new(|| {
    Codec::embedded(ReplayOutcome::TOPIC, &[include_str!("../../../schemas/history/dlt.outcomes.v1/1.avsc")])
});

impl Event for ReplayOutcome {
    const TOPIC: &'static str = "dlt.outcomes.v1";
    const AGGREGATE: &'static str = "message";

    fn codec() -> &'static Codec {
        &CODEC
    }

    fn event_type(&self) -> String {
        "waybill.dlt.outcome".to_owned()
    }

    fn key(&self) -> String {
        self.message_id.to_string()
    }
}
