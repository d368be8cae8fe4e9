//! Whether a letter can be replayed, as far as the console knows by itself.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use uuid::Uuid;

use crate::State;

/// Why a letter is left out of a replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Skip {
    /// A replay has resolved it.
    Resolved,
    /// The group has finished with it: its inbox or an outcome says so.
    AlreadyProcessed,
    /// Put away; restore it first.
    Archived,
    /// A running replay holds it, or its outcome is still awaited.
    InFlight,
    /// An earlier letter of its key is left out, or in flight elsewhere: it would overtake that one.
    EarlierLeftOut,
    /// Replayed as often as is allowed.
    LoopCap,
    /// The dead letter is a pointer: its value did not fit the topic.
    ValueLeftOut,
    /// A header's name is no text: no consumer can read it.
    HeadersUnreadable,
    /// The service cannot read the value.
    DoesNotDecode,
    /// The group refuses replays.
    ReplaySafetyNever,
    /// No known service consumes this topic as this group.
    NoService,
    /// A service does not answer, so nobody can say.
    ServiceUnreachable,
    /// It would go nowhere, or back to where it came from.
    NoTarget,
    /// The replay topic does not exist.
    TargetMissing,
}

impl Skip {
    /// As in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resolved => "resolved",
            Self::AlreadyProcessed => "already_processed",
            Self::Archived => "archived",
            Self::InFlight => "in_flight",
            Self::EarlierLeftOut => "earlier_left_out",
            Self::LoopCap => "loop_cap",
            Self::ValueLeftOut => "value_left_out",
            Self::HeadersUnreadable => "headers_unreadable",
            Self::DoesNotDecode => "does_not_decode",
            Self::ReplaySafetyNever => "replay_safety_never",
            Self::NoService => "no_service",
            Self::ServiceUnreachable => "service_unreachable",
            Self::NoTarget => "no_target",
            Self::TargetMissing => "target_missing",
        }
    }

    /// Nobody has to do or say anything about the letter any more: it holds nothing of its key back.
    #[must_use]
    pub const fn is_settled(self) -> bool {
        matches!(self, Self::Resolved | Self::AlreadyProcessed | Self::Archived)
    }
}

/// A letter that may be replayed.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    /// Asked for. The others are there for the order of their keys alone.
    pub(super) chosen: bool,
    pub(super) item_id: Uuid,
    pub(super) record_id: i64,
    pub(super) state: State,
    /// The replay that holds it runs.
    pub(super) held: bool,
    pub(super) sent_at: Option<DateTime<Utc>>,
    pub(super) dlt_topic: String,
    pub(super) consumer_group: String,
    pub(super) source_topic: String,
    pub(super) message_id: Uuid,
    pub(super) key: Option<Vec<u8>>,
    pub(super) value_bytes: i32,
    pub(super) value_left_out: bool,
    pub(super) headers_readable: bool,
    pub(super) replays: i32,
}

/// Bounds that an operator has set.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    pub(super) loop_cap: i32,
    /// What was sent before is not waited for any more.
    pub(super) overdue: DateTime<Utc>,
}

/// The console's own reasons.
pub(super) fn judge(letter: &Candidate, bounds: Bounds) -> Option<Skip> {
    let waiting = letter.sent_at.is_some_and(|at| at > bounds.overdue);
    match letter.state {
        State::Resolved => return Some(Skip::Resolved),
        State::AlreadyProcessed => return Some(Skip::AlreadyProcessed),
        State::Archived => return Some(Skip::Archived),
        State::Planned if letter.held => return Some(Skip::InFlight),
        State::Sent if waiting => return Some(Skip::InFlight),
        State::Planned | State::Sent | State::Open | State::FailedAgain => {}
    }
    if letter.replays >= bounds.loop_cap {
        return Some(Skip::LoopCap);
    }
    if letter.value_left_out {
        return Some(Skip::ValueLeftOut);
    }
    (!letter.headers_readable).then_some(Skip::HeadersUnreadable)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter(state: State) -> Candidate {
        Candidate {
            chosen: true,
            item_id: Uuid::nil(),
            record_id: 1,
            state,
            held: false,
            sent_at: None,
            dlt_topic: String::new(),
            consumer_group: String::new(),
            source_topic: String::new(),
            message_id: Uuid::nil(),
            key: None,
            value_bytes: 0,
            value_left_out: false,
            headers_readable: true,
            replays: 0,
        }
    }

    #[test]
    fn each_reason_is_told() {
        let now = Utc::now();
        let bounds = Bounds { loop_cap: 3, overdue: now };
        let of = |letter: &Candidate| judge(letter, bounds);
        assert_eq!(of(&letter(State::Open)), None);
        assert_eq!(of(&letter(State::FailedAgain)), None);
        assert_eq!(of(&letter(State::Resolved)), Some(Skip::Resolved));
        assert_eq!(of(&letter(State::Archived)), Some(Skip::Archived));
        assert_eq!(of(&letter(State::AlreadyProcessed)), Some(Skip::AlreadyProcessed));
        assert_eq!(of(&letter(State::Planned)), None);
        assert_eq!(of(&Candidate { held: true, ..letter(State::Planned) }), Some(Skip::InFlight));
        let sent = |seconds| Candidate {
            sent_at: Some(now + chrono::TimeDelta::seconds(seconds)),
            ..letter(State::Sent)
        };
        assert_eq!((of(&sent(1)), of(&sent(-1))), (Some(Skip::InFlight), None));
        assert_eq!(of(&Candidate { replays: 3, ..letter(State::FailedAgain) }), Some(Skip::LoopCap));
        assert_eq!(of(&Candidate { value_left_out: true, ..letter(State::Open) }), Some(Skip::ValueLeftOut));
        let unreadable = Candidate { headers_readable: false, ..letter(State::Open) };
        assert_eq!(of(&unreadable), Some(Skip::HeadersUnreadable));
    }
}
