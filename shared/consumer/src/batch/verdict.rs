//! What the failures of a transaction mean, for it and for its messages.

use std::time::Duration;

use uuid::Uuid;

use super::{Fallen, PERMANENT, TRANSIENT};
use crate::{
    Failure, Message,
    breaker::Ruling,
    failure::is_connection_lost,
    line::{Again, Line},
    park::Opening,
    policy::Order,
    work::{Failed, Stumble, Verdicts},
};

/// Why a transaction did not commit.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A message failed; savepoints will tell which.
    Failed,
    /// Something failed that names no message: deadlock, serialization, commit, panic.
    Nameless(String),
    /// The runtime's own statement, or the connection.
    Runtime(anyhow::Error),
    /// This message of a batch handler must wait in place, after those before it are finished without it.
    Stopped { before: usize, failed: Failed },
}

impl Trouble {
    pub(super) fn runtime(error: sqlx::Error) -> Self {
        Self::Runtime(error.into())
    }
}

/// Why a transaction cannot go on.
pub(super) enum Stop {
    Runtime(anyhow::Error),
    /// Without savepoints; of a call of several messages it is not known whose failure it is.
    Unguarded(Failed),
    /// What names no message, or leaves the connection in a state that is not known.
    Nameless(Stumble),
    /// The connection is in order.
    Trouble(Trouble),
}

impl Stop {
    pub(super) fn runtime(error: sqlx::Error) -> Self {
        Self::Runtime(error.into())
    }

    /// A call failed as a whole.
    pub(super) fn of_call(failed: Failed) -> Self {
        if failed.failure.lost_connection() {
            return Self::Runtime(failed.failure.into_error());
        }
        Self::Unguarded(failed)
    }
}

impl From<Stop> for Trouble {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Runtime(error) => Self::Runtime(error),
            Stop::Nameless(Stumble::Failed(failed) | Stumble::Panicked(failed)) => {
                Self::Nameless(failed.failure.text())
            }
            Stop::Unguarded(failed) if failed.failure.names_no_message() => {
                Self::Nameless(failed.failure.text())
            }
            Stop::Unguarded(_) => Self::Failed,
            Stop::Trouble(trouble) => trouble,
        }
    }
}

/// A committed transaction over some messages.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// One per message finished, from the front.
    pub(super) fates: Vec<Fate>,
    /// The failure of the message behind them.
    pub(super) blocked: Option<Failed>,
    /// Something was undone: without savepoints it would have been the whole.
    pub(super) undone: bool,
}

/// How a message of a transaction ended.
#[derive(Debug)]
pub(super) enum Fate {
    /// Its effect is in the transaction.
    Done,
    /// It leaves its partition, once the transaction is committed.
    Leaves(Verdict),
    /// It parks its key, in the transaction.
    Parks(Opening),
    /// It is parked.
    Parked,
}

/// Why a message leaves its partition, and whereto.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// As in [`Fallen`].
    pub(crate) class: &'static str,
    pub(crate) failed: Failed,
    /// `None`: as a dead letter.
    pub(crate) again: Option<Again>,
}

impl Line {
    /// What becomes of a message whose handling failed: it leaves or is parked, or it is held in place and the failure
    /// is given back. Asks the breaker before anything is counted or published.
    pub(super) fn rule<E>(&self, message: &Message<E>, failed: Failed) -> Result<Fate, Failed> {
        // A deadlock with another transaction is never the message's fault, whatever the handler made of it.
        if failed.failure.names_no_message() {
            return Err(failed);
        }
        // The delay counts from the failure, whatever the commit takes.
        let (id, now) = (message.id.as_uuid(), failed.at);
        match (&failed.failure, &self.order) {
            // Of other lines the breaker is told with the batch, by which time they may still be taken back.
            (Failure::Permanent(_), Order::Key(..))
                if self.breaker.failed_permanently(id) == Ruling::Hold =>
            {
                Err(failed)
            }
            (Failure::Permanent(_), _) => Ok(self.last(message, PERMANENT, failed)),
            (Failure::Transient(_), Order::Partition) => Err(failed),
            (Failure::Transient(_), _)
                if self.breaker.failed_transiently(id, message.attempt == 1) == Ruling::Hold =>
            {
                Err(failed)
            }
            (Failure::Transient(_), Order::None(_)) => {
                let again = self.again(message.attempt, message.first_failed, now);
                Ok(Fate::Leaves(Verdict { class: TRANSIENT, failed, again }))
            }
            (Failure::Transient(_), Order::Key(..)) => {
                let attempts = message.attempt;
                match self.park.as_ref().and_then(|park| park.delay(attempts, Duration::ZERO)) {
                    Some(due_in) => {
                        let verdict = Verdict { class: TRANSIENT, failed, again: None };
                        let failed = Some(Fallen::of(message, verdict));
                        Ok(Fate::Parks(Opening::Retry { attempts, due_in, failed }))
                    }
                    None => Ok(self.last(message, TRANSIENT, failed)),
                }
            }
        }
    }

    /// It was the last attempt. Of a key in order, what is behind it must wait until its dead letter is published.
    pub(super) fn last<E>(&self, message: &Message<E>, class: &'static str, failed: Failed) -> Fate {
        let verdict = Verdict { class, failed, again: None };
        match self.order {
            Order::Key(..) => Fate::Parks(Opening::Dead(Fallen::of(message, verdict))),
            Order::Partition | Order::None(_) => Fate::Leaves(verdict),
        }
    }
}

/// What a batch handler's outcomes mean for the transaction.
pub(super) fn judged<E>(line: &Line, messages: &[Message<E>], verdicts: Verdicts) -> Result<Chunk, Stop> {
    let mut chunk = Chunk { fates: Vec::with_capacity(verdicts.len()), ..Chunk::default() };
    for (before, (message, failed)) in messages.iter().zip(verdicts).enumerate() {
        let Some(failed) = failed else {
            chunk.fates.push(Fate::Done);
            continue;
        };
        // Whatever the handler made of it, nothing can be committed any more.
        if failed.failure.broke_transaction() {
            return Err(Stop::of_call(failed));
        }
        match line.rule(message, failed) {
            // A later one of its key may have taken effect before it: they are run again, one by one.
            Ok(Fate::Parks(_)) if messages[before + 1..].iter().any(|later| later.key() == message.key()) => {
                return Err(Stop::Trouble(Trouble::Failed));
            }
            Ok(fate) => chunk.fates.push(fate),
            Err(failed) => return Err(Stop::Trouble(Trouble::Stopped { before, failed })),
        }
    }
    Ok(chunk)
}

pub(super) fn undone<E>(messages: &[Message<E>], chunk: &Chunk) -> Vec<Uuid> {
    let done = |index: usize| matches!(chunk.fates.get(index), Some(Fate::Done));
    messages
        .iter()
        .enumerate()
        .filter(|(index, _)| !done(*index))
        .map(|(_, message)| message.id.as_uuid())
        .collect()
}

pub(super) fn of_commit(error: sqlx::Error) -> Trouble {
    if is_connection_lost(&error) { Trouble::runtime(error) } else { Trouble::Nameless(error.to_string()) }
}
