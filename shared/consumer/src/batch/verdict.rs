//! What the failures of a transaction mean, for it and for its messages.

use uuid::Uuid;

use crate::{
    Failure, Message,
    failure::is_connection_lost,
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
    /// This message of a batch handler must be tried again, after those before it are finished without it.
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
    /// One per message finished, from the front: `None` is done, else class and failure of a dead one.
    pub(super) verdicts: Vec<Option<(&'static str, Failed)>>,
    /// The failure of the message behind them.
    pub(super) blocked: Option<Failed>,
}

/// What a batch handler's outcomes mean for the transaction.
pub(super) fn judged(verdicts: Verdicts) -> Result<Chunk, Trouble> {
    let mut chunk = Chunk { verdicts: Vec::with_capacity(verdicts.len()), blocked: None };
    for (before, verdict) in verdicts.into_iter().enumerate() {
        match verdict {
            // Whatever the handler made of it, nothing can be committed any more.
            Some(failed) if failed.failure.broke_transaction() => return Err(of_call(failed)),
            Some(failed) if matches!(failed.failure, Failure::Transient(_)) => {
                return Err(Trouble::Stopped { before, failed });
            }
            verdict => chunk.verdicts.push(verdict.map(|failed| ("permanent", failed))),
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
pub(super) fn alone_verdict(stumble: Stumble) -> Chunk {
    let (class, failed) = match stumble {
        // It has panicked twice by now: in its batch and alone.
        Stumble::Panicked(failed) => ("panic", failed),
        Stumble::Failed(failed) => ("permanent", failed),
    };
    match failed.failure {
        // A deadlock with another transaction is never the message's fault, whatever the handler made of it.
        _ if failed.failure.names_no_message() => Chunk { verdicts: Vec::new(), blocked: Some(failed) },
        Failure::Transient(_) => Chunk { verdicts: Vec::new(), blocked: Some(failed) },
        Failure::Permanent(_) => Chunk { verdicts: vec![Some((class, failed))], blocked: None },
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
