//! Publishing what leaves a partition: acknowledged first, then the `dead` rows. The caller moves the offset after both.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::{StreamExt, stream};
use rdkafka::error::RDKafkaErrorCode;
use tokio::{sync::Notify, time::timeout};
use tokio_util::task::AbortOnDropHandle;

use super::{Assignment, Engine, Place, RETRY_MAX, Stopped};
use crate::{
    backoff::Backoff,
    batch::{DECODE, Fallen},
    crash::CRASH,
    metrics,
    redirect::error_text,
    store,
};

/// Records of a partition that wait for their acknowledgement together. They are enqueued in order; only a failed one
/// may end up behind its successors.
const IN_FLIGHT: usize = 64;

/// How long the ends of batches are gathered: each burial costs a request to the broker and a commit, whatever it holds.
/// A retry whose delay is shorter may be late by as much.
const GATHER: Duration = Duration::from_millis(100);

/// What the ends of batches leave behind, while the next ones are handled. Dropped, it ends at its next await.
pub(super) struct Burial {
    gathering: Arc<Gathering>,
    task: AbortOnDropHandle<Result<(), Stopped>>,
}

struct Gathering {
    /// Taken once it is over.
    grave: Mutex<Option<Grave>>,
    /// Ends it.
    hurry: Notify,
}

/// Records to be published before the partition's offset moves.
#[derive(Debug)]
pub(super) struct Grave {
    pub(super) fallen: Vec<Fallen>,
    /// The offset to move to.
    pub(super) next: i64,
    /// Record timestamp of the oldest of it.
    pub(super) oldest: Option<i64>,
}

impl Gathering {
    /// Adds the end of the next batch, or gives it back: it is too late.
    fn join(&self, later: Grave) -> Option<Grave> {
        let mut grave = self.grave.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(grave) = grave.as_mut() else { return Some(later) };
        grave.fallen.extend(later.fallen);
        grave.next = grave.next.max(later.next);
        if grave.fallen.len() >= IN_FLIGHT {
            self.hurry.notify_one();
        }
        None
    }

    /// What was gathered, once it is over.
    async fn gathered(&self) -> Option<Grave> {
        let _ = timeout(GATHER, self.hurry.notified()).await;
        self.grave.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Engine {
    /// Publishes what the end of a batch left and moves the offset, beside the next batches. Their ends join it while it
    /// gathers, also those that leave nothing: no offset moves over what is not published.
    pub(super) async fn bury_aside(
        self: &Arc<Self>,
        grave: Grave,
        assignment: &mut Assignment,
    ) -> Result<(), Stopped> {
        let late = match &assignment.burial {
            Some(burial) => burial.gathering.join(grave),
            None => Some(grave),
        };
        let Some(grave) = late else { return Ok(()) };
        self.burial_ended(assignment).await?;
        let (engine, place) = (Arc::clone(self), Place { aside: true, ..assignment.place.clone() });
        if grave.fallen.is_empty() {
            (place.advance)(grave.next);
            return Ok(());
        }
        place.front().set_oldest(grave.oldest);
        let full = grave.fallen.len() >= IN_FLIGHT;
        let gathering = Arc::new(Gathering { grave: Mutex::new(Some(grave)), hurry: Notify::new() });
        if full {
            gathering.hurry.notify_one();
        }
        let mine = Arc::clone(&gathering);
        let task = AbortOnDropHandle::new(tokio::spawn(async move {
            let Some(Grave { fallen, next, .. }) = mine.gathered().await else { return Ok(()) };
            engine.bury(fallen, &place).await?;
            (place.advance)(next);
            place.front().set_oldest(None);
            Ok(())
        }));
        assignment.burial = Some(Burial { gathering, task });
        Ok(())
    }

    /// Waits for what [`bury_aside`](Self::bury_aside) began, without further gathering.
    pub(crate) async fn burial_ended(&self, assignment: &mut Assignment) -> Result<(), Stopped> {
        let Some(burial) = assignment.burial.take() else { return Ok(()) };
        burial.gathering.hurry.notify_one();
        match burial.task.await {
            Ok(ended) => ended,
            Err(error) => match error.try_into_panic() {
                // The worker's own report of a panic.
                Ok(panic) => std::panic::resume_unwind(panic),
                Err(_) => Err(Stopped),
            },
        }
    }

    /// One id twice: the first copy speaks for both, as in a batch. Each replay is answered for itself.
    pub(super) async fn bury(&self, mut fallen: Vec<Fallen>, place: &Place) -> Result<(), Stopped> {
        if fallen.is_empty() {
            return Ok(());
        }
        let (pool, group, topic) = (&self.runner.pool, self.runner.group.as_str(), &place.state.topic);
        // A redelivery meets its own `dead` row: the record is in the topic already. What was handled has just been
        // looked up by its claim.
        let undecodable = fallen.iter().filter(|fallen| fallen.class == DECODE && !place.is_replay());
        let undecodable: Vec<_> = undecodable.map(|fallen| fallen.id.as_uuid()).collect();
        let look = || async {
            if undecodable.is_empty() {
                return Ok(Vec::new());
            }
            store::already_dead(pool, group, &undecodable).await
        };
        let known = self.insist(place, metrics::DATABASE, look).await?;
        let crashed: Vec<_> =
            fallen.iter().filter(|fallen| fallen.class == CRASH).map(|fallen| fallen.id).collect();
        let (count, mut seen) = (fallen.len(), HashSet::with_capacity(fallen.len()));
        fallen.retain(|fallen| place.is_replay() || seen.insert(fallen.id));
        let new = fallen.into_iter().filter(|fallen| !known.contains(&fallen.id.as_uuid()));
        let publishing: Vec<_> = new.map(|fallen| self.publish(fallen, place)).collect();
        let duplicates = count - publishing.len();
        let mut publishing = stream::iter(publishing).buffered(IN_FLIGHT);
        let mut dead = Vec::new();
        while let Some(ended) = publishing.next().await {
            dead.extend(ended?);
        }
        fail::fail_point!("consumer.after_redirect");
        let buried = dead.len();
        // Only after the acknowledgement: a `dead` row says that the dead letter is there.
        if !dead.is_empty() {
            self.insist(place, metrics::DATABASE, || store::mark_dead(pool, group, dead.clone())).await?;
        }
        for id in crashed {
            self.ended(id, place).await?;
        }
        let metrics = &self.runner.metrics;
        metrics.count(metrics::DEAD, topic, group, buried);
        metrics.count(metrics::RETRIED, topic, group, count - duplicates - buried);
        metrics.count(metrics::DUPLICATE, topic, group, duplicates);
        Ok(())
    }

    /// Returns the id of what is now dead.
    async fn publish(&self, mut fallen: Fallen, place: &Place) -> Result<Option<uuid::Uuid>, Stopped> {
        let group = &self.runner.group;
        if let Some(again) = &fallen.again {
            let fits = || async {
                match self.publisher.redirect(&again.topic, group, &fallen).await {
                    Ok(()) => Ok(true),
                    Err(error)
                        if error.rdkafka_error_code() == Some(RDKafkaErrorCode::MessageSizeTooLarge) =>
                    {
                        Ok(false)
                    }
                    Err(error) => Err(error),
                }
            };
            if self.insist(place, metrics::RETRY_TOPIC, fits).await? {
                return Ok(None);
            }
            // The dead-letter topic has a way out for what is too large.
            fallen.again = None;
        }
        let topic = &*place.line.dead_letter_topic;
        let publish = || self.publisher.redirect(topic, group, &fallen);
        self.insist(place, metrics::DEAD_LETTER, publish).await?;
        log_dead(&fallen, topic);
        Ok(Some(fallen.id.as_uuid()))
    }

    /// Tries until it succeeds or the partition is stopped; meanwhile the partition is visibly blocked.
    pub(super) async fn insist<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(
        &self,
        place: &Place,
        reason: &'static str,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, Stopped> {
        let settings = &self.runner.settings;
        let mut backoff = Backoff::new(settings.retry_min, settings.retry_max.min(RETRY_MAX));
        let mut blocked = false;
        loop {
            match attempt().await {
                Ok(value) => {
                    if blocked {
                        place.front().unblock();
                    }
                    return Ok(value);
                }
                Err(error) => {
                    tracing::warn!(partition = ?place.state, reason, %error, "blocked");
                    place.front().block(reason, error.to_string());
                    blocked = true;
                }
            }
            if !backoff.wait(&place.stop).await {
                return Err(Stopped);
            }
        }
    }
}

/// The one place that logs a final failure; never with content.
pub(super) fn log_dead(fallen: &Fallen, dead_letter_topic: &str) {
    tracing::error!(
        message_id = %fallen.id,
        topic = &*fallen.record.topic,
        partition = fallen.record.partition,
        offset = fallen.record.offset,
        code = fallen.code,
        error = error_text(&fallen.text),
        dead_letter_topic,
        "message is dead-lettered"
    );
}
