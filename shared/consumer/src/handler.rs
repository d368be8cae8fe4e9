//! What a service writes: a handler of one message, or of a whole batch.

use sqlx::PgConnection;
use waybill_event::Event;

use crate::{Failure, Message, Tx};

/// Handles one message at a time, inside the transaction that also holds its inbox row.
///
/// Return the error of every failed statement: PostgreSQL has aborted the transaction by then, and nothing can be
/// written in it any more. A handler that is run again starts from a clean savepoint or transaction.
///
/// Refuse before you use `tx`, be it for reading: a message that fails then costs no other message anything, one that fails
/// later makes some of its batch run again.
pub trait Handler: Send + Sync + 'static {
    /// Event of the topic.
    type Event: Event;

    /// Writes the effect of one message into `tx`. It must not commit or roll back `tx` itself; nested
    /// transactions are fine. Effects outside `tx` (calls, channels) may happen more than once: use
    /// [`committed`](Self::committed) for hints.
    ///
    /// # Errors
    /// [`Failure::Transient`] is tried again, in place or as the [`Subscription`](crate::Subscription) says;
    /// [`Failure::Permanent`] goes to the group's dead-letter topic at once. Either way the message's writes are
    /// undone.
    fn handle(
        &self,
        tx: &mut Tx<'_>,
        message: &Message<Self::Event>,
    ) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Called after the commit with the messages whose effect is now durable, in the order handled. At most once
    /// per message: a crash in between loses the call, so it is for hints and immediate sends only. Must not block.
    fn committed(&self, messages: &[Message<Self::Event>]) {
        let _ = messages;
    }
}

/// Handles a whole batch of one partition with set-based statements.
pub trait BatchHandler: Send + Sync + 'static {
    /// Event of the topic.
    type Event: Event;

    /// Writes the effects of all messages, which are in offset order and hold no id twice.
    ///
    /// **A message whose outcome is not [`Outcome::Done`] must have left nothing in `tx`**: judge first, then write the
    /// rest. The runtime cannot tell one message's writes from another's in a set-based statement, so it commits what
    /// is there, takes back the inbox rows of the messages that failed, and dead-letters the permanent ones.
    ///
    /// Where a message is retried in place nothing passes it: at the first [`Outcome::Transient`] the transaction is
    /// rolled back, the messages before it are handed in again without it and commit, and then it is tried alone until
    /// it is finished. Where it goes to a retry topic, or is parked, the others commit and it leaves.
    ///
    /// # Errors
    /// A failure of the whole call: everything is undone, and the messages come again one by one, each in a
    /// savepoint, to get their own verdicts.
    fn handle(
        &self,
        tx: &mut PgConnection,
        messages: &[Message<Self::Event>],
    ) -> impl Future<Output = Result<Vec<Outcome>, Failure>> + Send;

    /// As [`Handler::committed`].
    fn committed(&self, messages: &[Message<Self::Event>]) {
        let _ = messages;
    }
}

/// What became of one message of a batch; one per message, in their order. All but [`Done`](Self::Done) say that the
/// message has left nothing in the transaction.
#[derive(Debug)]
pub enum Outcome {
    /// The effect is written.
    Done,
    /// As [`Failure::Transient`].
    Transient(anyhow::Error),
    /// As [`Failure::Permanent`].
    Permanent(anyhow::Error),
}

impl Outcome {
    pub(crate) fn into_failure(self) -> Option<Failure> {
        match self {
            Self::Done => None,
            Self::Transient(error) => Some(Failure::Transient(error)),
            Self::Permanent(error) => Some(Failure::Permanent(error)),
        }
    }
}
