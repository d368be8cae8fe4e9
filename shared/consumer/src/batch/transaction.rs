//! The transaction around a batch: claims, handlers, what is parked, commit.

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Fallen, Mode, PANIC, Runner,
    parking::Parking,
    verdict::{Chunk, Fate, Stop, Trouble, judged, of_commit, undone},
};
use crate::{
    Message,
    failure::{is_connection_lost, is_rollback},
    line::Line,
    metrics,
    park::{Parks, park_failed},
    store::{self, Candidate, Lease},
    work::{Failed, Stumble, Work},
};

impl Runner {
    /// One transaction over all these messages. Drops those that need no handling from the list.
    pub(super) async fn transact<W: Work>(
        &self,
        line: &Line,
        work: &W,
        messages: &mut Vec<Message<W::Event>>,
        fallen: &mut Vec<Fallen>,
        mode: Mode,
    ) -> Result<Chunk, Trouble> {
        let mut lease = Lease::acquire(&self.pool).await.map_err(Trouble::runtime)?;
        let mut tx = lease.begin(&self.settings).await.map_err(Trouble::runtime)?;
        let mut parking = self.claim(&mut tx, line, messages, fallen).await?;
        let (alone, single) = (parking.is_alone(), mode == Mode::Single);
        let called = match mode {
            Mode::Fast => self.whole(&mut tx, line, work, &mut parking).await,
            Mode::Savepoints | Mode::Single => None,
        };
        let ran = match called {
            Some(ran) => ran,
            None => self.each(&mut tx, line, work, &mut parking, mode != Mode::Fast).await,
        };
        let chunk = match ran {
            Ok(chunk) => chunk,
            Err(stop @ (Stop::Unguarded(_) | Stop::Trouble(_))) => {
                tx.rollback().await.map_err(Trouble::runtime)?;
                lease.release();
                return match stop {
                    // Alone, the failure names its message: no second run is needed.
                    Stop::Unguarded(failed) if alone => {
                        self.alone(line, parking, Stumble::Failed(failed)).await
                    }
                    stop => Err(stop.into()),
                };
            }
            // Dropping the lease closes the connection: its state is not known.
            Err(stop @ (Stop::Runtime(_) | Stop::Nameless(_))) => {
                drop(tx);
                drop(lease);
                return match stop {
                    Stop::Nameless(stumble) if alone && single => self.alone(line, parking, stumble).await,
                    stop => Err(stop.into()),
                };
            }
        };
        // The inbox rows stand outside the savepoints: a `done` row must mean that the effect is in this commit.
        let undone = undone(parking.messages, &chunk);
        // Fails behind an error that a handler swallowed. A message alone is not run again at once for it.
        let trouble = |error| if single { Trouble::runtime(error) } else { of_commit(error) };
        if !undone.is_empty() {
            store::unclaim(&mut tx, &self.group, &undone).await.map_err(trouble)?;
        }
        parking.write(&mut tx).await.map_err(trouble)?;
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
            Err(error) if alone && single && !is_connection_lost(&error) => {
                drop(lease);
                return self.alone(line, parking, Stumble::Failed(Failed::new(error.into()))).await;
            }
            Err(error) => return Err(trouble(error)),
        }
        fail::fail_point!("consumer.after_commit");
        parking.committed();
        Ok(chunk)
    }

    /// All messages in one call, where the work has one.
    async fn whole<W: Work>(
        &self,
        tx: &mut PgConnection,
        line: &Line,
        work: &W,
        parking: &mut Parking<'_, W::Event>,
    ) -> Option<Result<Chunk, Stop>> {
        let judged = match work.all(tx, parking.messages, self.around()).await? {
            Ok(verdicts) => judged(line, parking.messages, verdicts),
            Err(Stumble::Failed(failed)) => Err(Stop::of_call(failed)),
            Err(stumble @ Stumble::Panicked(_)) => Err(Stop::Nameless(stumble)),
        };
        Some(judged.map(|mut chunk| {
            let all = 0..chunk.fates.len();
            parking.park(&mut chunk.fates, all);
            chunk
        }))
    }

    /// The fate of a message that was alone in its transaction, which is gone.
    async fn alone<E>(
        &self,
        line: &Line,
        parking: Parking<'_, E>,
        stumble: Stumble,
    ) -> Result<Chunk, Trouble> {
        let message = &parking.messages[0];
        let ruled = match stumble {
            // It has panicked twice by now: in its batch and alone.
            Stumble::Panicked(failed) => Ok(line.last(message, PANIC, failed)),
            Stumble::Failed(failed) => line.rule(message, failed),
        };
        let fate = match ruled {
            Err(failed) => return Ok(Chunk { fates: Vec::new(), blocked: Some(failed), undone: true }),
            Ok(Fate::Parks(opening)) => {
                let (pool, settings) = (&self.pool, &self.settings);
                let parked = park_failed(pool, settings, &self.group, &line.source, message, opening);
                parked.await.map_err(Trouble::runtime)?;
                Fate::Parked
            }
            Ok(fate) => fate,
        };
        Ok(Chunk { fates: vec![fate], blocked: None, undone: true })
    }

    /// Inserts the ids and drops from the list what the inbox knows. A conflict waits for the other transaction, so
    /// the row it met is committed, and the message is finished whether or not this transaction commits. A message
    /// beyond the horizon is never handled, whatever becomes of the transaction: it is handed over as dead at once.
    ///
    /// Then, in a new statement, it is asked which keys are parked: whoever has claimed a message, has waited for every
    /// transaction that could have parked it.
    async fn claim<'l, E>(
        &'l self,
        tx: &mut PgConnection,
        line: &'l Line,
        messages: &'l mut Vec<Message<E>>,
        fallen: &mut Vec<Fallen>,
    ) -> Result<Parking<'l, E>, Trouble> {
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
        let parks = match line.park {
            Some(_) => {
                Some(Parks::read(tx, &self.group, &line.source, messages).await.map_err(Trouble::runtime)?)
            }
            None => None,
        };
        Ok(Parking::new(parks, messages))
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
