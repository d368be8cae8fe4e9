//! The flood breaker of one subscription, over source, tiers, replay and park.
//!
//! **Promises.** While everything fails transiently, one process lets at most
//! [`bound`](BreakerSettings::bound) messages go to the next tier or to the dead letters, however much runs in
//! parallel: the rest is held, and no attempt is counted. While it is open one message at a time is tried, in turns
//! over all who wait; any success closes it, and all who wait go on at once. A message whose third probe failed takes
//! its normal way, so that neither a poisonous message nor one that always fails keeps the line shut. It stops before
//! as many messages as are set have been dead-lettered in a row without a success, until an operator resumes it.
//!
//! **Does not promise.** It keeps nothing over a restart and knows nothing of other processes. It opens at more than
//! half: what fails less often goes its normal way. Where only messages are left that have failed before, it opens when
//! all of them fail. Nobody else's failures are counted: a lost connection, a
//! duplicate and a fault of the runtime are no outcomes.

mod machine;
mod settings;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Instant};

use chrono::{DateTime, TimeDelta, Utc};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use uuid::Uuid;

use machine::Machine;
pub use settings::BreakerSettings;

/// What becomes of a message that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Ruling {
    /// Its normal way: the attempt is counted, and it goes to the next tier, the park or the dead letters.
    Count,
    /// It stays where it is: nothing is published, no attempt is counted, the offset does not move.
    #[default]
    Hold,
}

/// Whether the line runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BreakerPhase {
    /// Everything runs.
    Closed,
    /// Most of the recent messages failed transiently; one message at a time is tried.
    Open,
    /// Too many messages failed for good; nothing runs until [`Breaker::resume`].
    Stopped,
}

impl BreakerPhase {
    /// `closed`, `open` or `stopped`: the value in metrics and for operators.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Open => "open",
            Self::Stopped => "stopped",
        }
    }
}

/// A breaker as operators see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BreakerState {
    /// Whether the line runs.
    pub phase: BreakerPhase,
    /// Why it does not; never with content of a message.
    pub reason: Option<String>,
    /// Since when it is so.
    pub since: DateTime<Utc>,
}

/// The breaker of one subscription, shared by all who handle its messages.
#[derive(Debug)]
pub(crate) struct Breaker {
    /// A change of the phase, and nothing else, wakes who waits.
    machine: watch::Sender<Machine>,
    /// The turn to probe: one, first come first served.
    turn: Arc<Semaphore>,
}

impl Breaker {
    /// Closed.
    #[must_use]
    pub(crate) fn new(settings: BreakerSettings) -> Arc<Self> {
        let machine = watch::Sender::new(Machine::new(settings, Instant::now()));
        Arc::new(Self { machine, turn: Arc::new(Semaphore::new(1)) })
    }

    /// Waits until the line is closed, or until it is the caller's turn to try one message. Cancelled, it gives up its
    /// place in the queue and nothing else. Ask before every transaction, and after [`Ruling::Hold`] with no delay of
    /// one's own: the breaker spaces the probes.
    pub(crate) async fn admit(self: &Arc<Self>) -> Pass {
        let mut machine = self.machine.subscribe();
        loop {
            let phase = machine.borrow_and_update().phase();
            match phase {
                BreakerPhase::Closed => return Pass { breaker: Arc::clone(self), turn: None },
                // The sender is this breaker itself: it cannot be gone.
                BreakerPhase::Stopped => drop(machine.changed().await),
                BreakerPhase::Open => tokio::select! {
                    biased;
                    _ = machine.changed() => {}
                    turn = self.turn() => return Pass { breaker: Arc::clone(self), turn },
                },
            }
        }
    }

    /// The turn, when the time has come. It is kept while its time is waited for: nobody comes in between.
    async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        let turn = Arc::clone(&self.turn).acquire_owned().await.ok();
        loop {
            let next = self.machine.borrow().next_probe();
            let wait = next.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                return turn;
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// Messages whose effect is committed. Duplicates that the inbox skipped are none.
    pub(crate) fn succeeded(&self, messages: usize) {
        self.update(|machine, now| machine.succeeded(messages, now));
    }

    /// A message failed in a way that a retry may mend. Ask before its attempt is counted and anything of it is
    /// published. A run that is repeated may ask again: the message counts once. `first`: at its first attempt.
    #[must_use]
    pub(crate) fn failed_transiently(&self, id: Uuid, first: bool) -> Ruling {
        self.update(|machine, now| machine.failed_transiently(id, first, now))
    }

    /// A message failed for good, or cannot be decoded, or panicked. Tell it in the order of the offsets, between the
    /// successes (see [`finished`](Self::finished)). Not for `stale`, `crash` and `replay_refused`, which no
    /// deployment causes, and not for replays: those of one cause that is not repaired would stop the source.
    #[must_use]
    pub(crate) fn failed_permanently(&self, id: Uuid) -> Ruling {
        self.update(|machine, now| machine.failed_permanently(id, now))
    }

    /// Tells what a batch finished, by offset: `None` is done, else the message that failed for good. Returns the
    /// first offset that is held: nothing from there on may be dead-lettered.
    #[must_use]
    pub(crate) fn finished(&self, mut outcomes: Vec<(i64, Option<Uuid>)>) -> Option<i64> {
        outcomes.sort_unstable_by_key(|(offset, _)| *offset);
        self.update(|machine, now| {
            let mut held = None;
            for (offset, dead) in outcomes {
                match dead {
                    None => machine.succeeded(1, now),
                    Some(id) if machine.failed_permanently(id, now) == Ruling::Hold => {
                        held = held.or(Some(offset));
                    }
                    Some(_) => {}
                }
            }
            held
        })
    }

    /// Lets a stopped line run again, by an operator. `false` when it was not stopped.
    pub(crate) fn resume(&self) -> bool {
        self.update(Machine::resume)
    }

    /// Whether the line runs, why not, since when.
    #[must_use]
    pub(crate) fn state(&self) -> BreakerState {
        let machine = self.machine.borrow();
        let ago = machine.since().elapsed();
        let since = Utc::now() - TimeDelta::from_std(ago).unwrap_or_default();
        BreakerState { phase: machine.phase(), reason: machine.reason().map(str::to_owned), since }
    }

    fn update<T: Default>(&self, change: impl FnOnce(&mut Machine, Instant) -> T) -> T {
        let (mut result, now) = (T::default(), Instant::now());
        self.machine.send_if_modified(|machine| {
            let before = machine.phase();
            result = change(machine, now);
            let changed = machine.phase() != before;
            if changed {
                let (phase, reason) = (machine.phase().as_str(), machine.reason());
                tracing::warn!(phase, reason, "the flood breaker changed");
            }
            changed
        });
        result
    }
}

/// Leave to handle messages once. Hold it until their outcomes are told; dropped, it gives the turn to the next.
#[derive(Debug)]
#[must_use = "dropped, it gives the turn to the next"]
pub(crate) struct Pass {
    breaker: Arc<Breaker>,
    turn: Option<OwnedSemaphorePermit>,
}

impl Pass {
    /// The line is open: exactly one message may be handled with it.
    #[must_use]
    pub(crate) const fn is_probe(&self) -> bool {
        self.turn.is_some()
    }

    /// Names the one message that is tried, before it is handled. Its failure then counts as a failed probe, and the
    /// third lets it take its normal way.
    pub(crate) fn tries(&self, id: Uuid) {
        if self.is_probe() {
            self.breaker.update(|machine, _| machine.probe(Some(id)));
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        // Before the turn goes to the next.
        if self.is_probe() {
            self.breaker.update(|machine, _| machine.probe(None));
        }
    }
}
