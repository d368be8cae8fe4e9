//! What became of a dead message so far.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// State of a dead message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
#[value(rename_all = "snake_case")]
pub enum State {
    /// Died; nobody has done anything about it.
    Open,
    /// A running replay holds it.
    Planned,
    /// Replayed and acknowledged by Kafka; the consumer has not said what became of it.
    Sent,
    /// The consumer has handled it in a replay.
    Resolved,
    /// Died again in a replay.
    FailedAgain,
    /// The consumer had finished with it before.
    AlreadyProcessed,
    /// Put away by an operator, with a reason.
    Archived,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 7] = [
        Self::Open,
        Self::Planned,
        Self::Sent,
        Self::Resolved,
        Self::FailedAgain,
        Self::AlreadyProcessed,
        Self::Archived,
    ];
    /// The states in which somebody still has to do or say something.
    pub const UNSETTLED: [Self; 4] = [Self::Open, Self::Planned, Self::Sent, Self::FailedAgain];

    /// As in the database and in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Planned => "planned",
            Self::Sent => "sent",
            Self::Resolved => "resolved",
            Self::FailedAgain => "failed_again",
            Self::AlreadyProcessed => "already_processed",
            Self::Archived => "archived",
        }
    }

    /// The state of that name. The database holds no other.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}
