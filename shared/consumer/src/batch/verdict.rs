//! What the failures of a transaction mean, for it and for its messages.

use uuid::Uuid;

use chrono::Utc;

use super::{PANIC, PERMANENT, TRANSIENT};
use crate::{
    Failure, Message,
    breaker::Ruling,
    failure::is_connection_lost,
    line::{Again, Line},
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

/// A committed transaction over some messages.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    /// One per message finished, from the front: `None` is done, else why and whereto it leaves.
    pub(super) verdicts: Vec<Option<Verdict>>,
    /// The failure of the message behind them.
    pub(super) blocked: Option<Failed>,
}

/// Why a message leaves its partition, and whereto.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// As in [`Fallen`](super::Fallen).
    pub(crate) class: &'static str,
    pub(crate) failed: Failed,
    /// `None`: as a dead letter.
    pub(crate) again: Option<Again>,
}

impl Line {
    /// What becomes of a message whose handling failed: it leaves with a verdict, or it is held in place and the
    /// failure is given back.
    pub(super) fn rule<E>(&self, message: &Message<E>, failed: Failed) -> Result<Verdict, Failed> {
        // A deadlock with another transaction is never the message's fault, whatever the handler made of it.
        if failed.failure.names_no_message() {
            return Err(failed);
        }
        match (&failed.failure, &self.order) {
            (Failure::Permanent(_), _) => Ok(Verdict { class: PERMANENT, failed, again: None }),
            (Failure::Transient(_), Order::Partition) => Err(failed),
            // Asked before anything is counted or published.
            (Failure::Transient(_), _)
                if self.breaker.failed_transiently(message.id.as_uuid()) == Ruling::Hold =>
            {
                Err(failed)
            }
            (Failure::Transient(_), _) => {
                let again = self.again(message.attempt, message.first_failed, Utc::now());
                Ok(Verdict { class: TRANSIENT, failed, again })
            }
        }
    }
}

/// What a batch handler's outcomes mean for the transaction.
pub(super) fn judged<E>(line: &Line, messages: &[Message<E>], verdicts: Verdicts) -> Result<Chunk, Trouble> {
    let mut chunk = Chunk { verdicts: Vec::with_capacity(verdicts.len()), blocked: None };
    for (before, (message, failed)) in messages.iter().zip(verdicts).enumerate() {
        let Some(failed) = failed else {
            chunk.verdicts.push(None);
            continue;
        };
        // Whatever the handler made of it, nothing can be committed any more.
        if failed.failure.broke_transaction() {
            return Err(of_call(failed));
        }
        match line.rule(message, failed) {
            Ok(verdict) => chunk.verdicts.push(Some(verdict)),
            Err(failed) => return Err(Trouble::Stopped { before, failed }),
        }
    }
    Ok(chunk)
}

/// A call that failed as a whole.
pub(super) fn of_call(Failed { failure, .. }: Failed) -> Trouble {
    if failure.lost_connection() {
        return Trouble::Runtime(failure.into_error());
    }
    if failure.names_no_message() {
        return Trouble::Nameless(format!("{:#}", failure.error()));
    }
    Trouble::Failed
}

/// The verdict on a message that was alone in its transaction, which is gone.
pub(super) fn alone_verdict<E>(line: &Line, message: &Message<E>, stumble: Stumble) -> Chunk {
    let ruled = match stumble {
        // It has panicked twice by now: in its batch and alone.
        Stumble::Panicked(failed) => Ok(Verdict { class: PANIC, failed, again: None }),
        Stumble::Failed(failed) => line.rule(message, failed),
    };
    match ruled {
        Ok(verdict) => Chunk { verdicts: vec![Some(verdict)], blocked: None },
        Err(failed) => Chunk { verdicts: Vec::new(), blocked: Some(failed) },
    }
}

pub(super) fn undone<E>(messages: &[Message<E>], chunk: &Chunk) -> Vec<Uuid> {
    let done = |index: usize| matches!(chunk.verdicts.get(index), Some(None));
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
