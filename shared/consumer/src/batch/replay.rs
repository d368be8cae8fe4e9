//! The transaction of one replayed message.

use super::{
    Fallen, PANIC, PERMANENT, Runner, TRANSIENT,
    verdict::{Trouble, Verdict},
};
use crate::{
    Failure, Message,
    breaker::Ruling,
    failure::is_connection_lost,
    line::Line,
    metrics,
    store::{self, Lease, ReplayClaim},
    work::{self, Failed, Stumble, Work},
};

/// Code of a replay that the group refuses.
const REPLAY_REFUSED: &str = "replay_refused";

/// How a replay ended.
#[derive(Debug)]
pub(crate) enum Replayed {
    /// The effect is committed, by this delivery or an earlier one of the same replay.
    Resolved,
    /// The group had finished with the message without this replay.
    AlreadyProcessed,
    /// Its one attempt failed.
    Failed(Box<Fallen>),
    /// Not the message's fault: it waits in place.
    Held(Failed),
    /// The database or the connection failed: nobody's attempt.
    Fault(anyhow::Error),
}

impl Runner {
    /// The `dead` row becomes `done` in the very transaction of the effect, so a replay has its effect once, however
    /// often it is delivered and whoever replays the same message beside it.
    pub(crate) async fn replay<W: Work>(
        &self,
        line: &Line,
        work: &W,
        message: &Message<W::Event>,
        replay: uuid::Uuid,
    ) -> Replayed {
        match self.try_replay(work, message, replay).await {
            Ok(ReplayClaim::Granted) => {
                line.breaker.succeeded(1);
                self.metrics.count(metrics::DONE, message.topic(), &self.group, 1);
                Replayed::Resolved
            }
            Ok(ReplayClaim::Resolved) => Replayed::Resolved,
            Ok(ReplayClaim::AlreadyProcessed) => {
                self.metrics.count(metrics::DUPLICATE, message.topic(), &self.group, 1);
                Replayed::AlreadyProcessed
            }
            Err(Attempt::Trouble(Trouble::Runtime(error))) => Replayed::Fault(error),
            Err(Attempt::Trouble(trouble)) => Replayed::Fault(anyhow::anyhow!("{trouble:?}")),
            Err(Attempt::Stumble(Stumble::Panicked(failed))) => fallen(message, PANIC, failed),
            Err(Attempt::Stumble(Stumble::Failed(failed))) => {
                if failed.failure.lost_connection() {
                    return Replayed::Fault(failed.failure.into_error());
                }
                if failed.failure.names_no_message() {
                    return Replayed::Held(failed);
                }
                match failed.failure {
                    // Not the breaker's: replays of one cause that is not repaired would stop the source.
                    Failure::Permanent(_) => fallen(message, PERMANENT, failed),
                    // One attempt, but not while most of what is tried fails.
                    Failure::Transient(_) => {
                        match line.breaker.failed_transiently(message.id.as_uuid(), false) {
                            Ruling::Hold => Replayed::Held(failed),
                            Ruling::Count => fallen(message, TRANSIENT, failed),
                        }
                    }
                }
            }
        }
    }

    async fn try_replay<W: Work>(
        &self,
        work: &W,
        message: &Message<W::Event>,
        replay: uuid::Uuid,
    ) -> Result<ReplayClaim, Attempt> {
        let mut lease = Lease::acquire(&self.pool).await.map_err(Trouble::runtime)?;
        let mut tx = lease.begin(&self.settings).await.map_err(Trouble::runtime)?;
        let id = message.id.as_uuid();
        let claim = store::claim_replay(&mut tx, &self.group, id, replay).await.map_err(Trouble::runtime)?;
        if claim != ReplayClaim::Granted {
            tx.rollback().await.map_err(Trouble::runtime)?;
            lease.release();
            return Ok(claim);
        }
        // Dropping the lease on any failure closes the connection, which rolls back.
        work.one(&mut tx, message, self.around()).await.map_err(Attempt::Stumble)?;
        store::settle(&mut tx).await.map_err(of_end)?;
        fail::fail_point!("consumer.before_commit");
        tx.commit().await.map_err(of_end)?;
        lease.release();
        fail::fail_point!("consumer.after_commit");
        work::committed(work, std::slice::from_ref(message), &self.group);
        Ok(claim)
    }
}

impl Fallen {
    /// The group's subscription says that it must never be replayed.
    pub(crate) fn refused<E>(message: &Message<E>) -> Self {
        let failed = Failed::new(Failure::permanent(anyhow::anyhow!("this group refuses replays")));
        let mut fallen = Self::of(message, Verdict { class: REPLAY_REFUSED, failed, again: None });
        REPLAY_REFUSED.clone_into(&mut fallen.code);
        fallen
    }
}

enum Attempt {
    Trouble(Trouble),
    Stumble(Stumble),
}

impl From<Trouble> for Attempt {
    fn from(trouble: Trouble) -> Self {
        Self::Trouble(trouble)
    }
}

/// A deferred constraint speaks of this message; a lost connection of nobody.
fn of_end(error: sqlx::Error) -> Attempt {
    if is_connection_lost(&error) {
        return Attempt::Trouble(Trouble::runtime(error));
    }
    Attempt::Stumble(Stumble::Failed(Failed::new(error.into())))
}

fn fallen<E>(message: &Message<E>, class: &'static str, failed: Failed) -> Replayed {
    Replayed::Failed(Box::new(Fallen::of(message, Verdict { class, failed, again: None })))
}
