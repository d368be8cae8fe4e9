//! Burying: the dead letter acknowledged, then the `dead` row. The caller moves the offset after both.

use std::sync::Arc;

use futures::{StreamExt, stream};
use tokio_util::task::AbortOnDropHandle;

use super::{Assignment, Engine, Place, RETRY_MAX, Stopped};
use crate::{
    backoff::Backoff,
    batch::{DECODE, Dead},
    dead_letter::error_text,
    metrics, store,
};

/// Dead letters of a partition that wait for their acknowledgement together. They are enqueued in order; only a
/// failed one may end up behind its successors.
const IN_FLIGHT: usize = 64;

/// Dead letters on their way while the next batch is handled. Dropped, it ends at its next await.
pub(super) type Burial = AbortOnDropHandle<Result<(), Stopped>>;

impl Engine {
    /// Buries the last of a batch and moves the offset, beside the next batch: it waits for other machines only.
    pub(super) fn bury_aside(
        self: &Arc<Self>,
        dead: Vec<Dead>,
        next: i64,
        oldest: Option<i64>,
        assignment: &mut Assignment,
    ) {
        let (engine, place) = (Arc::clone(self), assignment.place.clone());
        place.state.set_oldest(oldest);
        assignment.burial = Some(AbortOnDropHandle::new(tokio::spawn(async move {
            engine.bury(dead, &place).await?;
            (place.advance)(next);
            place.state.clear_oldest(oldest);
            Ok(())
        })));
    }

    /// Waits for what [`bury_aside`](Self::bury_aside) began.
    pub(crate) async fn burial_ended(&self, assignment: &mut Assignment) -> Result<(), Stopped> {
        match assignment.burial.take() {
            None => Ok(()),
            Some(burial) => match burial.await {
                Ok(ended) => ended,
                Err(error) => match error.try_into_panic() {
                    // The worker's own report of a panic.
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(_) => Err(Stopped),
                },
            },
        }
    }

    pub(super) async fn bury(&self, dead: Vec<Dead>, place: &Place) -> Result<(), Stopped> {
        if dead.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = dead.iter().map(|dead| dead.id.as_uuid()).collect();
        let (pool, group, topic) = (&self.runner.pool, self.runner.group.as_str(), &place.state.topic);
        // A redelivery meets its own `dead` row: the record is in the topic already. What was handled has just been
        // looked up by its claim.
        let undecodable = dead.iter().filter(|dead| dead.class == DECODE).map(|dead| dead.id.as_uuid());
        let undecodable: Vec<_> = undecodable.collect();
        let look = || async {
            if undecodable.is_empty() {
                return Ok(Vec::new());
            }
            store::already_dead(pool, group, &undecodable).await
        };
        let known = self.insist(place, metrics::DATABASE, look).await?;
        let mut publishing = Vec::with_capacity(dead.len());
        for dead in &dead {
            if !known.contains(&dead.id.as_uuid()) {
                publishing.push(self.publish(dead, place));
            }
        }
        let buried = publishing.len();
        let mut publishing = stream::iter(publishing).buffered(IN_FLIGHT);
        while let Some(published) = publishing.next().await {
            published?;
        }
        self.insist(place, metrics::DATABASE, || store::mark_dead(pool, group, ids.clone())).await?;
        self.runner.metrics.count(metrics::DEAD, topic, group, buried);
        self.runner.metrics.count(metrics::DUPLICATE, topic, group, dead.len() - buried);
        Ok(())
    }

    async fn publish(&self, dead: &Dead, place: &Place) -> Result<(), Stopped> {
        let topic = &*place.dead_letter_topic;
        let publish = || self.dead_letters.publish(topic, &self.runner.group, dead);
        self.insist(place, metrics::DEAD_LETTER, publish).await?;
        log_dead(dead, topic);
        Ok(())
    }

    /// Tries until it succeeds or the partition is stopped; meanwhile the partition is visibly blocked.
    async fn insist<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(
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
                        place.state.unblock();
                    }
                    return Ok(value);
                }
                Err(error) => {
                    tracing::warn!(partition = ?place.state, reason, %error, "blocked");
                    place.state.block(reason, error.to_string());
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
fn log_dead(dead: &Dead, dead_letter_topic: &str) {
    tracing::error!(
        message_id = %dead.id,
        topic = &*dead.record.topic,
        partition = dead.record.partition,
        offset = dead.record.offset,
        code = dead.code,
        error = error_text(&dead.text),
        dead_letter_topic,
        "message is dead-lettered"
    );
}
