//! Replays: one message a transaction, one attempt, and an outcome that is told before the offset moves.

use std::sync::Arc;

use chrono::Utc;
use uuid::Uuid;
use waybill_event::{Event, ReplayOutcome, headers, outcome::kind};

use super::{Assignment, Engine, Place, Stopped, Waits};
use crate::{
    Message,
    batch::{Fallen, Replayed},
    breaker::BreakerPhase,
    crash::{Mode, Verdict},
    metrics,
    policy::ReplaySafety,
    record::Record,
    redirect::error_text,
    work::Work,
};

impl Engine {
    /// Handles replayed records one by one. Each ends as an outcome, or as a dead letter again.
    pub(super) async fn replay_all<W: Work>(
        self: &Arc<Self>,
        work: &W,
        records: Vec<Record>,
        assignment: &mut Assignment,
    ) -> Result<(), Stopped> {
        let state = Arc::clone(&assignment.place.state);
        let (first, last) = (records.first().map_or(0, |r| r.offset), records.last().map_or(0, |r| r.offset));
        let mode = self.mode(first, last + 1, assignment).await?;
        for record in records {
            let (next, record) = (record.offset + 1, Arc::new(record));
            state.batch.set_oldest(record.timestamp_ms);
            let fallen = self.replay(work, &record, mode, assignment).await?;
            // A dead letter again is acknowledged, an outcome told, before the offset moves: a crash in between
            // repeats either, under the same ids.
            self.bury(fallen.into_iter().collect(), &assignment.place).await?;
            state.batch.unblock();
            (assignment.place.advance)(next);
        }
        state.batch.set_oldest(None);
        Ok(())
    }

    async fn replay<W: Work>(
        &self,
        work: &W,
        record: &Arc<Record>,
        mode: Mode,
        assignment: &mut Assignment,
    ) -> Result<Option<Fallen>, Stopped> {
        let message = match self.decode::<W::Event>(record, assignment).await? {
            Ok(message) => message,
            Err(fallen) => return Ok(Some(fallen)),
        };
        let place = &assignment.place;
        if place.line.replay_safety == ReplaySafety::Never {
            return Ok(Some(Fallen::refused(&message)));
        }
        let replay = replay_id(record);
        let mut waits = Waits::new(&self.runner.settings);
        loop {
            let turn = self.turn(mode, place).await?;
            turn.pass.tries(message.id.as_uuid());
            if mode == Mode::Suspect && self.begins(message.id, Some(replay), place).await? == Verdict::Crash
            {
                return Ok(Some(Fallen::crashed(&message)));
            }
            let replayed = self.runner.replay(&place.line, work, &message, replay).await;
            if mode == Mode::Suspect {
                self.ended(message.id, place).await?;
            }
            drop(turn);
            let (reason, error) = match replayed {
                Replayed::Resolved => {
                    self.report(&message, replay, kind::RESOLVED, place).await?;
                    return Ok(None);
                }
                Replayed::AlreadyProcessed => {
                    self.report(&message, replay, kind::ALREADY_PROCESSED, place).await?;
                    return Ok(None);
                }
                Replayed::Failed(fallen) => return Ok(Some(*fallen)),
                // The breaker spaces what is tried.
                Replayed::Held(_) if place.line.breaker.state().phase != BreakerPhase::Closed => continue,
                Replayed::Held(failed) => (metrics::TRANSIENT, failed.failure.text()),
                Replayed::Fault(error) => (metrics::DATABASE, format!("{error:#}")),
            };
            let error = error_text(&error);
            tracing::warn!(partition = ?place.state, reason, error, "replay is tried again");
            place.state.batch.block(reason, error);
            if !waits.of(reason).wait(&place.stop).await {
                return Err(Stopped);
            }
        }
    }

    /// Waits for a schema that may come with a deployment, as for any record.
    pub(super) async fn decode<E: Event>(
        &self,
        record: &Arc<Record>,
        assignment: &mut Assignment,
    ) -> Result<Result<Message<E>, Fallen>, Stopped> {
        let mut waits = Waits::new(&self.runner.settings);
        loop {
            match record.decode::<E>() {
                Ok(message) => return Ok(Ok(message)),
                Err(error) if error.unknown_schema && !assignment.patience.is_over(&error.text) => {
                    assignment.place.state.batch.block(metrics::UNKNOWN_SCHEMA, error.text);
                    if !waits.of(metrics::UNKNOWN_SCHEMA).wait(&assignment.place.stop).await {
                        return Err(Stopped);
                    }
                }
                Err(error) => return Ok(Err(Fallen::undecodable(record, error, assignment.place.kind))),
            }
        }
    }

    async fn report<E>(
        &self,
        message: &Message<E>,
        replay: Uuid,
        outcome: &str,
        place: &Place,
    ) -> Result<(), Stopped> {
        let told = ReplayOutcome {
            message_id: message.id.as_uuid(),
            replay_id: replay,
            consumer_group: self.runner.group.clone(),
            topic: place.line.source.to_string(),
            outcome: outcome.to_owned(),
            occurred_at: Utc::now(),
        };
        fail::fail_point!("consumer.before_outcome");
        let report = || self.publisher.report(&self.outcomes, &told, message.trace.as_ref());
        self.insist(place, metrics::OUTCOMES, report).await
    }
}

/// A record that somebody produced by hand, without a replay's id, is a replay of its own.
pub(super) fn replay_id(record: &Record) -> Uuid {
    let given = record.headers().text(headers::REPLAY_ID).and_then(|id| Uuid::parse_str(id).ok());
    given.unwrap_or_else(|| {
        let place = format!("{}/{}/{}", record.topic, record.partition, record.offset);
        Uuid::new_v5(&Uuid::NAMESPACE_URL, place.as_bytes())
    })
}
