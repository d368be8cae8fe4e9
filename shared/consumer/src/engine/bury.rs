//! Burying: the dead letter acknowledged, then the `dead` row. The caller moves the offset after both.

use super::{Assignment, Engine, RETRY_MAX, Stopped};
use crate::{backoff::Backoff, batch::Dead, dead_letter::error_text, metrics, store};

impl Engine {
    pub(super) async fn bury(&self, dead: Vec<Dead>, assignment: &Assignment) -> Result<(), Stopped> {
        if dead.is_empty() {
            return Ok(());
        }
        let ids: Vec<_> = dead.iter().map(|dead| dead.id.as_uuid()).collect();
        let (pool, group, topic) = (&self.runner.pool, self.runner.group.as_str(), &assignment.state.topic);
        // A redelivery meets its own `dead` row: the record is in the topic already.
        let known =
            self.insist(assignment, metrics::DATABASE, || store::already_dead(pool, group, &ids)).await?;
        let (dead_letter_topic, mut buried) = (&*assignment.dead_letter_topic, 0);
        for dead in dead.iter().filter(|dead| !known.contains(&dead.id.as_uuid())) {
            let publish = || self.dead_letters.publish(dead_letter_topic, group, dead);
            self.insist(assignment, metrics::DEAD_LETTER, publish).await?;
            log_dead(dead, dead_letter_topic);
            buried += 1;
        }
        self.insist(assignment, metrics::DATABASE, || store::mark_dead(pool, group, ids.clone())).await?;
        self.runner.metrics.count(metrics::DEAD, topic, group, buried);
        self.runner.metrics.count(metrics::DUPLICATE, topic, group, dead.len() - buried);
        Ok(())
    }

    /// Tries until it succeeds or the partition is stopped; meanwhile the partition is visibly blocked.
    async fn insist<T, E: std::fmt::Display, F: Future<Output = Result<T, E>>>(
        &self,
        assignment: &Assignment,
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
                        assignment.state.unblock();
                    }
                    return Ok(value);
                }
                Err(error) => {
                    tracing::warn!(partition = ?assignment.state, reason, %error, "blocked");
                    assignment.state.block(reason, error.to_string());
                    blocked = true;
                }
            }
            if !backoff.wait(&assignment.stop).await {
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
