//! The two shapes of the transaction: all messages at once, or each in a savepoint.

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Fallen, Runner,
    verdict::{Chunk, Trouble, alone_verdict, judged, of_call, of_commit, undone},
};
use crate::{
    Message,
    failure::{is_connection_lost, is_rollback},
    line::Line,
    metrics,
    store::{self, Candidate, Lease},
    work::{Failed, Stumble, Work},
};

/// More than 64 subtransactions overflow the server's cache of them, and every reader pays.
const SAVEPOINTS: usize = 50;
/// Messages that share a savepoint. At 1 % failing messages the savepoints then cost as much as what is run again.
const GROUP: usize = 12;

impl Runner {
    /// All messages in one transaction, no savepoint. Drops those that need no handling from the list.
    pub(super) async fn try_all<W: Work>(
        &self,
        line: &Line,
        work: &W,
        messages: &mut Vec<Message<W::Event>>,
        fallen: &mut Vec<Fallen>,
    ) -> Result<Chunk, Trouble> {
        let mut lease = Lease::acquire(&self.pool).await.map_err(Trouble::runtime)?;
        let mut tx = lease.begin(&self.settings).await.map_err(Trouble::runtime)?;
        self.claim(&mut tx, messages, fallen).await?;
        let judged = match work.all(&mut tx, messages, self.around()).await {
            Ok(verdicts) => judged(line, messages, verdicts),
            // Alone, the failure names its message: no second run is needed.
            Err(Stumble::Failed(failed)) if messages.len() == 1 && !failed.failure.lost_connection() => {
                tx.rollback().await.map_err(Trouble::runtime)?;
                lease.release();
                return Ok(alone_verdict(line, &messages[0], Stumble::Failed(failed)));
            }
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

    /// Groups of messages in savepoints. With `alone` there is one message, and whatever fails is its own.
    pub(super) async fn try_each<W: Work>(
        &self,
        line: &Line,
        work: &W,
        messages: &mut Vec<Message<W::Event>>,
        fallen: &mut Vec<Fallen>,
        alone: bool,
    ) -> Result<Chunk, Trouble> {
        let mut lease = Lease::acquire(&self.pool).await.map_err(Trouble::runtime)?;
        let mut tx = lease.begin(&self.settings).await.map_err(Trouble::runtime)?;
        self.claim(&mut tx, messages, fallen).await?;
        let chunk = match self.each(&mut tx, line, work, messages).await {
            Ok(chunk) => chunk,
            // Dropping the lease closes the connection: its state is not known.
            Err(Stop::Runtime(error)) => return Err(Trouble::Runtime(error)),
            Err(Stop::Nameless(stumble)) if alone && !messages.is_empty() => {
                return Ok(alone_verdict(line, &messages[0], stumble));
            }
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
                return Ok(alone_verdict(line, &messages[0], Stumble::Failed(Failed::new(error.into()))));
            }
            Err(error) => return Err(of_commit(error)),
        }
        fail::fail_point!("consumer.after_commit");
        Ok(chunk)
    }

    /// A savepoint costs a round trip, so a group of messages shares one. When one of a group fails, the group is
    /// undone and run again without it.
    async fn each<W: Work>(
        &self,
        tx: &mut PgConnection,
        line: &Line,
        work: &W,
        messages: &[Message<W::Event>],
    ) -> Result<Chunk, Stop> {
        let mut chunk = Chunk::default();
        if messages.is_empty() {
            return Ok(chunk);
        }
        store::savepoint(tx).await.map_err(Stop::runtime)?;
        let (mut width, mut savepoints) = (GROUP, 1);
        while chunk.verdicts.len() < messages.len() && savepoints < SAVEPOINTS {
            let at = chunk.verdicts.len();
            let mut group = at..(at + width).min(messages.len());
            width = GROUP;
            let mut leaving = HashMap::new();
            loop {
                savepoints += 1;
                let here = messages.iter().enumerate().take(group.end).skip(at);
                let here = here.filter(|(index, _)| !leaving.contains_key(index));
                match self.group(tx, work, here).await? {
                    Ran::Kept => break,
                    Ran::Failed(index, failed) => match line.rule(&messages[index], failed) {
                        Ok(verdict) => drop(leaving.insert(index, verdict)),
                        // Nothing behind it in the partition is handled first.
                        Err(failed) => {
                            group.end = index;
                            chunk.blocked = Some(failed);
                        }
                    },
                    // One by one, then.
                    Ran::Swallowed => {
                        (width, group.end) = (1, at);
                        leaving.clear();
                        chunk.blocked = None;
                        break;
                    }
                }
            }
            chunk.verdicts.extend(group.map(|index| leaving.remove(&index)));
            if chunk.blocked.is_some() {
                break;
            }
        }
        Ok(chunk)
    }

    /// Runs a group and keeps its writes, or undoes them all.
    async fn group<'m, W: Work>(
        &self,
        tx: &mut PgConnection,
        work: &W,
        messages: impl Iterator<Item = (usize, &'m Message<W::Event>)> + Send,
    ) -> Result<Ran, Stop> {
        let mut ran = Vec::with_capacity(GROUP);
        let mut failed = None;
        for (index, message) in messages {
            ran.push(index);
            match work.one(tx, message, self.around()).await {
                Ok(()) => {}
                Err(Stumble::Failed(failure)) if failure.failure.lost_connection() => {
                    return Err(Stop::Runtime(failure.failure.into_error()));
                }
                Err(Stumble::Failed(failure)) if !failure.failure.names_no_message() => {
                    failed = Some(Ran::Failed(index, failure));
                    break;
                }
                Err(stumble) => return Err(Stop::Nameless(stumble)),
            }
        }
        let failed = match failed {
            Some(failed) => failed,
            // Fails where a handler swallowed an error, so that no message is taken for done.
            None => match store::next_savepoint(tx).await {
                Ok(()) => return Ok(Ran::Kept),
                Err(error) if is_connection_lost(&error) => return Err(Stop::runtime(error)),
                Err(error) => match ran[..] {
                    [only] => Ran::Failed(only, Failed::new(error.into())),
                    _ => Ran::Swallowed,
                },
            },
        };
        store::undo(tx).await.map_err(Stop::runtime)?;
        Ok(failed)
    }

    /// Inserts the ids and drops from the list what the inbox knows. A conflict waits for the other transaction, so
    /// the row it met is committed, and the message is finished whether or not this transaction commits. A message
    /// beyond the horizon is never handled, whatever becomes of the transaction: it is handed over as dead at once.
    async fn claim<E>(
        &self,
        tx: &mut PgConnection,
        messages: &mut Vec<Message<E>>,
        fallen: &mut Vec<Fallen>,
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
                    fallen.push(Fallen::stale(message, horizon.done));
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

/// How a group of messages ended.
enum Ran {
    /// Its writes are kept.
    Kept,
    /// All is undone, for this message's failure.
    Failed(usize, Failed),
    /// All is undone. One of several failed, and its handler hid the error, so that it cannot be told which.
    Swallowed,
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
