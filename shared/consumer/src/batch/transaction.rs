//! The two shapes of the transaction: all messages at once, or each in a savepoint.

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Dead, Runner,
    verdict::{Chunk, Trouble, alone_verdict, judged, of_call, of_commit, undone},
};
use crate::{
    Failure, Message,
    failure::{is_connection_lost, is_rollback},
    metrics,
    store::{self, Candidate, Lease},
    work::{Failed, Stumble, Work},
};

impl Runner {
    /// All messages in one transaction, no savepoint. Drops those that need no handling from the list.
    pub(super) async fn try_all<W: Work>(
        &self,
        work: &W,
        messages: &mut Vec<Message<W::Event>>,
        dead: &mut Vec<Dead>,
    ) -> Result<Chunk, Trouble> {
        let mut lease = Lease::acquire(&self.pool).await.map_err(Trouble::runtime)?;
        let mut tx = lease.begin(&self.settings).await.map_err(Trouble::runtime)?;
        self.claim(&mut tx, messages, dead).await?;
        let judged = match work.all(&mut tx, messages, self.around()).await {
            Ok(verdicts) => judged(verdicts),
            Err(Stumble::Failed(failed)) => Err(of_call(failed)),
            Err(Stumble::Panicked(failed)) => Err(Trouble::Nameless(failed.failure.error().to_string())),
        };
        let chunk = match judged {
            Ok(chunk) => chunk,
            Err(trouble @ (Trouble::Failed | Trouble::Stopped { .. })) => {
                tx.rollback().await.map_err(Trouble::runtime)?;
                lease.release();
                return Err(trouble);
            }
            // Dropping the lease closes the connection: its state is not known.
            Err(trouble) => return Err(trouble),
        };
        let undone = undone(messages, &chunk);
        if !undone.is_empty() {
            // Also fails behind an error that the handler swallowed.
            store::unclaim(&mut tx, &self.group, &undone).await.map_err(of_commit)?;
        }
        store::settle(&mut tx).await.map_err(of_commit)?;
        fail::fail_point!("consumer.before_commit");
        tx.commit().await.map_err(of_commit)?;
        lease.release();
        fail::fail_point!("consumer.after_commit");
        Ok(chunk)
    }

    /// Each message in a savepoint. With `alone` there is one message, and whatever fails is its own.
    pub(super) async fn try_each<W: Work>(
        &self,
        work: &W,
        messages: &mut Vec<Message<W::Event>>,
        dead: &mut Vec<Dead>,
        alone: bool,
    ) -> Result<Chunk, Trouble> {
        let mut lease = Lease::acquire(&self.pool).await.map_err(Trouble::runtime)?;
        let mut tx = lease.begin(&self.settings).await.map_err(Trouble::runtime)?;
        self.claim(&mut tx, messages, dead).await?;
        let chunk = match self.each(&mut tx, work, messages).await {
            Ok(chunk) => chunk,
            // Dropping the lease closes the connection: its state is not known.
            Err(Stop::Runtime(error)) => return Err(Trouble::Runtime(error)),
            Err(Stop::Nameless(stumble)) if alone => return Ok(alone_verdict(stumble)),
            Err(Stop::Nameless(Stumble::Failed(failed) | Stumble::Panicked(failed))) => {
                return Err(Trouble::Nameless(format!("{:#}", failed.failure.error())));
            }
        };
        // The inbox rows stand outside the savepoints: a `done` row must mean that the effect is in this commit.
        let undone = undone(messages, &chunk);
        if !undone.is_empty() {
            store::unclaim(&mut tx, &self.group, &undone).await.map_err(Trouble::runtime)?;
        }
        let settled = match store::settle(&mut tx).await {
            Ok(()) => {
                fail::fail_point!("consumer.before_commit");
                tx.commit().await
            }
            Err(error) => {
                drop(tx);
                Err(error)
            }
        };
        match settled {
            Ok(()) => lease.release(),
            // A deferred constraint speaks at the end; alone, it speaks of this message.
            Err(error) if alone && !messages.is_empty() && !is_connection_lost(&error) => {
                return Ok(alone_verdict(Stumble::Failed(Failed::new(error.into()))));
            }
            Err(error) => return Err(of_commit(error)),
        }
        fail::fail_point!("consumer.after_commit");
        Ok(chunk)
    }

    async fn each<W: Work>(
        &self,
        tx: &mut PgConnection,
        work: &W,
        messages: &[Message<W::Event>],
    ) -> Result<Chunk, Stop> {
        let mut chunk = Chunk::default();
        if messages.is_empty() {
            return Ok(chunk);
        }
        store::savepoint(tx).await.map_err(Stop::runtime)?;
        for message in messages {
            let failed = match work.one(tx, message, self.around()).await {
                // Fails where the handler swallowed an error, so that the message is not taken for done.
                Ok(()) => match store::next_savepoint(tx).await {
                    Ok(()) => None,
                    Err(error) if is_connection_lost(&error) => return Err(Stop::runtime(error)),
                    Err(error) => Some(Failed::new(error.into())),
                },
                Err(Stumble::Failed(failed)) if !failed.failure.names_no_message() => Some(failed),
                Err(stumble) => return Err(Stop::Nameless(stumble)),
            };
            let Some(failed) = failed else {
                chunk.verdicts.push(None);
                continue;
            };
            if failed.failure.lost_connection() {
                return Err(Stop::Runtime(failed.failure.into_error()));
            }
            store::undo(tx).await.map_err(Stop::runtime)?;
            if let Failure::Transient(_) = failed.failure {
                // Nothing behind it in the partition is handled first.
                chunk.blocked = Some(failed);
                break;
            }
            chunk.verdicts.push(Some(("permanent", failed)));
        }
        Ok(chunk)
    }

    /// Inserts the ids and drops from the list what the inbox knows. A conflict waits for the other transaction, so
    /// the row it met is committed, and the message is finished whether or not this transaction commits. A message
    /// beyond the horizon is never handled, whatever becomes of the transaction: it is handed over as dead at once.
    async fn claim<E>(
        &self,
        tx: &mut PgConnection,
        messages: &mut Vec<Message<E>>,
        dead: &mut Vec<Dead>,
    ) -> Result<(), Trouble> {
        let horizon = self.settings.horizon;
        let candidates = messages.iter().map(|message| Candidate::of(message)).collect();
        let claims = match store::claim(tx, &self.group, candidates, horizon.stale_after()).await {
            Ok(claims) => HashMap::<Uuid, bool>::from_iter(claims),
            Err(error) if is_rollback(&error) && messages.len() > 1 => {
                return Err(Trouble::Nameless(error.to_string()));
            }
            Err(error) => return Err(Trouble::runtime(error)),
        };
        let mut known = 0;
        let topic = messages.first().map(|message| message.topic().to_owned()).unwrap_or_default();
        messages.retain(|message| match claims.get(&message.id.as_uuid()) {
            Some(stale) => {
                if *stale {
                    dead.push(Dead::stale(message, horizon.done));
                }
                !stale
            }
            None => {
                known += 1;
                false
            }
        });
        self.metrics.count(metrics::DUPLICATE, &topic, &self.group, known);
        Ok(())
    }
}

impl Candidate {
    fn of<E>(message: &Message<E>) -> Self {
        // A replay is protected by its own row, which is kept longer.
        let replayed = message.headers().get(waybill_event::headers::REPLAY_ID).is_some();
        let made = message.id.time().filter(|_| !replayed);
        Self { id: message.id.as_uuid(), made }
    }
}

/// Why the loop over the messages ended early.
enum Stop {
    Runtime(anyhow::Error),
    Nameless(Stumble),
}

impl Stop {
    fn runtime(error: sqlx::Error) -> Self {
        Self::Runtime(error.into())
    }
}
