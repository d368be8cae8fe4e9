//! One head of one key.

use std::sync::Arc;

use sqlx::{PgConnection, PgTransaction};
use waybill_event::{MessageId, outcome::kind};

use super::{Begun, Drainer, Outside, SOON};
use crate::{
    Message,
    failure::is_connection_lost,
    metrics,
    park::{
        settings::interval,
        store::{self, Head, Untold},
    },
    store::{self as inbox, Lease, ReplayClaim},
    work::{Failed, Stumble, Work},
};

/// What is next for a key.
pub(super) enum Step {
    Next,
    Rest,
    /// The head is to be handled alone in the process.
    Alone,
    /// The handler of the head at this position panicked: once more alone, then it is dead.
    Panicked(i64),
}

/// How a head was handled.
enum Verdict {
    Done,
    /// The inbox knows it: handled before by this very replay, or without it.
    Known {
        resolved: bool,
    },
    Failed(Failed),
    Panicked(Failed),
}

impl<W: Work, O: Outside> Drainer<W, O> {
    pub(super) async fn step(&self, id: i64, panicked: Option<i64>, pass: &O::Pass) -> anyhow::Result<Step> {
        let mut lease = Lease::acquire(&self.pool).await?;
        let mut tx = lease.begin(&self.settings).await?;
        let Some(key) = store::lock(&mut tx, id).await? else {
            tx.commit().await?;
            lease.release();
            return Ok(Step::Rest);
        };
        let head = store::head(&mut tx, id).await?;
        let empty = head.is_none();
        let Some(head) = head.filter(|head| head.is_turn(&key)) else {
            tx.commit().await?;
            lease.release();
            return self.aside(id, empty).await;
        };
        // Live messages of the key come from another worker than its replays: one that is being handled now, began before
        // the park was there.
        if !head.clear && !head.dead {
            store::fence(&mut tx, head.position).await?;
            // Most transactions are short. Behind a long one its time moves on, for the others' sake.
            let pause = if head.fenced { SOON } else { self.park.poll };
            store::hold(&mut tx, id, &head, interval(pause)).await?;
            tx.commit().await?;
            lease.release();
            return Ok(Step::Rest);
        }
        if head.dead {
            self.hold(&mut tx, id, &head).await?;
            tx.commit().await?;
            lease.release();
            return self.bury(&key, &head, &head.condemned(&key, &self.topic)).await;
        }
        let mut message = match Arc::new(head.record(&key, &self.topic)).decode::<W::Event>() {
            Ok(message) => message,
            Err(error) => {
                let dead = self.undecodable(&mut tx, &key, &head, &error).await?;
                tx.commit().await?;
                lease.release();
                return self.bury_some(&key, &head, dead).await;
            }
        };
        (message.id, message.attempt) = (MessageId::from(head.message_id), head.attempt(&key));
        message.last_attempt = head.failed_traceparent.clone();
        message.first_failed = key.first_failed_at.filter(|_| head.replay_id.is_none());
        match self.outside.begin(pass, message.id, head.replay_id).await? {
            Begun::Handle => {}
            Begun::Alone => {
                tx.commit().await?;
                lease.release();
                return Ok(Step::Alone);
            }
            Begun::Crash => {
                let dead = self.crashed(&mut tx, &key, &head).await?;
                tx.commit().await?;
                lease.release();
                // Condemned, it is not begun again: its crashes need not be remembered.
                self.outside.end(message.id).await?;
                return self.bury(&key, &head, &dead).await;
            }
        }
        let verdict = self.attempt(&mut tx, &head, &message).await;
        self.outside.end(message.id).await?;
        match verdict {
            Ok(Verdict::Done) => {
                self.outside.tried(message.id, head.replay_id.is_some(), None);
                let outcome = self.finished(&mut tx, id, &head, kind::RESOLVED).await?;
                fail::fail_point!("park.before_commit");
                tx.commit().await?;
                lease.release();
                fail::fail_point!("park.after_commit");
                self.committed(&message);
                self.tell_some(outcome).await
            }
            Ok(Verdict::Known { resolved }) => {
                let told = if resolved { kind::RESOLVED } else { kind::ALREADY_PROCESSED };
                let outcome = self.finished(&mut tx, id, &head, told).await?;
                tx.commit().await?;
                lease.release();
                self.count(metrics::DUPLICATE);
                self.tell_some(outcome).await
            }
            Ok(Verdict::Failed(failed)) => {
                inbox::undo(&mut tx).await?;
                let dead = self.judge(&mut tx, &key, &head, &failed).await?;
                tx.commit().await?;
                lease.release();
                self.bury_some(&key, &head, dead).await
            }
            Ok(Verdict::Panicked(failed)) => {
                // Dropped, the connection is closed: its state is not known.
                drop(tx);
                drop(lease);
                self.panicked(&key, &head, &failed, panicked).await
            }
            Err(error) => {
                drop(tx);
                drop(lease);
                self.interrupted(id, &head, &error).await
            }
        }
    }

    /// Claim, handler and deferred constraints behind a savepoint, so that a failure keeps the lock of the key until
    /// it is recorded: no other instance handles the head meanwhile.
    async fn attempt(
        &self,
        tx: &mut PgConnection,
        head: &Head,
        message: &Message<W::Event>,
    ) -> anyhow::Result<Verdict> {
        inbox::savepoint(tx).await?;
        match head.replay_id {
            Some(replay) => match inbox::claim_replay(tx, &self.group, head.message_id, replay).await? {
                ReplayClaim::Granted => {}
                ReplayClaim::Resolved => return Ok(Verdict::Known { resolved: true }),
                ReplayClaim::AlreadyProcessed => return Ok(Verdict::Known { resolved: false }),
            },
            None if store::claim(tx, &self.group, head.message_id).await? => {}
            None => return Ok(Verdict::Known { resolved: false }),
        }
        match self.work.one(tx, message, self.around()).await {
            // Fails where the handler swallowed an error.
            Ok(()) => match inbox::settle(tx).await {
                Ok(()) => Ok(Verdict::Done),
                Err(error) if is_connection_lost(&error) => Err(error.into()),
                Err(error) => Ok(Verdict::Failed(Failed::new(error.into()))),
            },
            Err(Stumble::Failed(failed)) if failed.failure.lost_connection() => {
                Err(failed.failure.into_error())
            }
            Err(Stumble::Failed(failed)) => Ok(Verdict::Failed(failed)),
            Err(Stumble::Panicked(failed)) => Ok(Verdict::Panicked(failed)),
        }
    }

    /// The head is handled, now or before. Returns the outcome that is to be told.
    async fn finished(
        &self,
        tx: &mut PgTransaction<'_>,
        id: i64,
        head: &Head,
        outcome: &str,
    ) -> Result<Option<Untold>, sqlx::Error> {
        let Some(replay_id) = head.replay_id else {
            store::done(tx, id, head.position).await?;
            return Ok(None);
        };
        store::replayed(tx, id, head, &self.group, outcome, interval(self.park.lease)).await?;
        let (position, message_id, headers) = (head.position, head.message_id, head.headers.clone());
        Ok(Some(Untold { position, message_id, replay_id, outcome: outcome.to_owned(), headers }))
    }
}
