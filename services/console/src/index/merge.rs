//! How the state of an item follows from its deaths and from what consumers say: by rank, not by arrival.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::State;

/// What a consumer said of one message in one replay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) replay_id: Uuid,
    pub(super) resolved: bool,
    pub(super) occurred_at: DateTime<Utc>,
}

/// One dead letter of the item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Death {
    pub(super) replays: i32,
    pub(super) failed_at: DateTime<Utc>,
    pub(super) replay_id: Option<Uuid>,
}

impl Death {
    /// Whether it came after `other`: of two replays the count tells, as clocks differ; else the time does.
    fn is_after(&self, other: &Self) -> bool {
        if self.replay_id.is_some() && other.replay_id.is_some() && self.replays != other.replays {
            return self.replays > other.replays;
        }
        self.failed_at >= other.failed_at
    }
}

/// The part of an item that decides its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Standing {
    pub(super) state: State,
    /// The replay that holds it or held it last.
    pub(super) replay_id: Option<Uuid>,
    /// Its latest death.
    pub(super) death: Death,
}

impl Standing {
    /// Of a message that has just died for the first time as far as is known here.
    pub(super) fn new(death: Death) -> Self {
        Self { state: resting(death), replay_id: None, death }
    }

    /// Adds a death that was not known before. True when it is the latest now.
    pub(super) fn die(&mut self, death: Death) -> bool {
        let latest = death.is_after(&self.death);
        let ours = self.replay_id.is_some() && death.replay_id == self.replay_id;
        if latest {
            self.death = death;
        }
        self.state = match self.state {
            // The running replay's own failure; any other is older than it.
            State::Planned | State::Sent if ours => State::FailedAgain,
            State::Planned | State::Sent => self.state,
            _ if latest || ours => resting(self.death),
            _ => self.state,
        };
        latest
    }

    /// What the consumers' word makes of it: the best word counts, unless the message has died after it, and not in
    /// that replay.
    pub(super) fn hear(&mut self, told: &[Told]) {
        let Some(best) = told.iter().max_by_key(|told| (told.resolved, told.occurred_at)) else { return };
        let died_later =
            self.death.failed_at > best.occurred_at && self.death.replay_id != Some(best.replay_id);
        if !died_later {
            self.state = if best.resolved { State::Resolved } else { State::AlreadyProcessed };
        }
    }
}

/// The state of a message that nobody holds.
pub(super) fn resting(death: Death) -> State {
    if death.replay_id.is_some() { State::FailedAgain } else { State::Open }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_790_000_000 + seconds, 0).unwrap()
    }

    const R1: Uuid = Uuid::from_u128(1);
    const R2: Uuid = Uuid::from_u128(2);

    fn death(replays: i32, second: i64, replay_id: Option<Uuid>) -> Death {
        Death { replays, failed_at: at(second), replay_id }
    }

    fn sent(replay_id: Uuid) -> Standing {
        Standing { state: State::Sent, replay_id: Some(replay_id), death: death(0, 0, None) }
    }

    #[test]
    fn a_replay_that_fails_is_failed_again_and_an_older_one_changes_nothing() {
        let mut item = sent(R2);
        item.die(death(1, 5, Some(R1)));
        assert_eq!(item.state, State::Sent);
        // Its clock is behind: the count of replays says that it is the later one.
        assert!(item.die(death(2, 4, Some(R2))));
        assert_eq!(item.state, State::FailedAgain);
        // A copy of the first death, come late.
        assert!(!item.die(death(0, 3, None)));
        assert_eq!(item.state, State::FailedAgain);
    }

    #[test]
    fn a_new_death_opens_what_was_archived() {
        let mut item = Standing { state: State::Archived, ..Standing::new(death(0, 0, None)) };
        item.die(death(0, 1, None));
        assert_eq!(item.state, State::Open);
    }

    #[test]
    fn a_death_after_the_word_of_another_replay_counts() {
        let told = Told { replay_id: R1, resolved: true, occurred_at: at(10) };
        let mut item = Standing::new(death(1, 11, None));
        item.hear(&[told]);
        assert_eq!(item.state, State::Open);
        let mut item = Standing::new(death(1, 11, Some(R1)));
        item.hear(&[told]);
        assert_eq!(item.state, State::Resolved);
    }

    proptest! {
        /// Every order of arrival of a failure, an "already processed" and a "resolved" of one replay ends the same.
        #[test]
        fn rank_decides_and_not_arrival(order in Just(vec![0, 1, 2, 1, 0]).prop_shuffle(), known in any::<bool>()) {
            let mut told: Vec<Told> = Vec::new();
            let mut item = known.then(|| sent(R1));
            for event in order {
                match event {
                    0 => {
                        let death = death(1, 5, Some(R1));
                        match &mut item {
                            Some(item) => { item.die(death); }
                            None => item = Some(Standing::new(death)),
                        }
                    }
                    kind => told.push(Told { replay_id: R1, resolved: kind == 2, occurred_at: at(kind) }),
                }
                if let Some(item) = &mut item {
                    item.hear(&told);
                }
            }
            prop_assert_eq!(item.map(|item| item.state), Some(State::Resolved));
        }
    }
}
