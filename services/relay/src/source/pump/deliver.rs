//! Producing, and what follows from the broker's answers.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use chrono::Utc;
use rdkafka::error::RDKafkaErrorCode;

use super::super::failure::{Failure, classify};
use super::super::producer::Report;
use super::super::record;
use super::super::row::{Key, RowId};
use super::super::store;
use super::super::window::Flight;
use super::{Error, Event, Pump, RETRY};
use crate::config::Policy;

impl Pump {
    /// Hands over every row that may leave.
    pub(super) fn produce(&mut self) -> Result<(), Error> {
        let limit = self.topic_limit();
        while let Some((row, alone)) = self.window.next(limit) {
            // Rule: never produce for a bucket past the own deadline of its lease. Checked for every row: the loop
            // may have been stopped for any time between two of them.
            if !self.leases.may_produce(row.bucket, Instant::now()) {
                self.window.abandon(row.id);
                self.window.drop_bucket(row.bucket);
                self.cursors.rewind(row.bucket);
                continue;
            }
            let span = record::span(&self.tracer, &row);
            let queued = self.producers.send(&row, alone, &self.ce_source, span);
            fail::fail_point!("relay.after_produce");
            if let Err(error) = queued {
                let code = error.rdkafka_error_code().unwrap_or(RDKafkaErrorCode::Unknown);
                if code == RDKafkaErrorCode::QueueFull {
                    // The queue is larger than the budget in flight, so this is a surprise and not a state.
                    tracing::warn!(source = self.ce_source, "producer queue is full");
                    self.window.abandon(row.id);
                    self.cursors.back_to(row.bucket, row.id.seq);
                    break;
                }
                self.on_failed(row.id, code)?;
            }
        }
        Ok(())
    }

    pub(super) fn on_report(&mut self, report: Report) -> Result<(), Error> {
        match report {
            Report::Delivered { generation, .. } if generation != self.producers.generation() => Ok(()),
            Report::Delivered { id, error: None, .. } => {
                if let Some(flight) = self.window.acked(id) {
                    self.on_acked(id, &flight);
                }
                Ok(())
            }
            Report::Delivered { id, error: Some(code), .. } => self.on_failed(id, code),
            Report::Client { generation, .. } if generation != self.producers.generation() => Ok(()),
            Report::Client { code, .. } => {
                if classify(code) == Failure::Producer || self.producers.is_fatal() {
                    tracing::warn!(source = self.ce_source, %code, "producer is lost and made anew");
                    return self.rebuild();
                }
                self.watch.client_error(code);
                Ok(())
            }
        }
    }

    fn on_acked(&mut self, id: RowId, flight: &Flight) {
        self.pauses.acked(&flight.key.topic);
        let stats = &self.setup.stats;
        stats.published.fetch_add(1, Relaxed);
        if !self.order.note(&flight.key, id.seq) && !flight.retried {
            stats.inversions.fetch_add(1, Relaxed);
            tracing::error!(source = self.ce_source, seq = id.seq, topic = %flight.key.topic, "a key went backwards");
        }
        self.latency.record((Utc::now() - flight.created_at).to_std().unwrap_or_default());
        // Rule: a row is marked only after the broker acknowledged it.
        self.marks.push(id, Instant::now());
    }

    /// A row was not written, or nobody knows.
    fn on_failed(&mut self, id: RowId, code: RDKafkaErrorCode) -> Result<(), Error> {
        let flight = match classify(code) {
            Failure::Topic => {
                let flight = self.window.abandon(id);
                if let Some(flight) = &flight {
                    self.pause(&flight.key.topic, code);
                }
                flight
            }
            Failure::Row => self.on_refused(id, code),
            Failure::Producer => {
                tracing::warn!(source = self.ce_source, %code, "producer is lost and made anew");
                return self.rebuild();
            }
            Failure::Outage if self.producers.is_fatal() => {
                tracing::warn!(source = self.ce_source, %code, "producer is lost and made anew");
                return self.rebuild();
            }
            Failure::Outage => {
                tracing::debug!(source = self.ce_source, seq = id.seq, %code, "row is sent again");
                self.window.abandon(id)
            }
        };
        if let Some(flight) = flight {
            self.cursors.back_to(flight.bucket, id.seq);
        }
        Ok(())
    }

    /// The broker will not take the row as it came: alone once more, then it is dead.
    fn on_refused(&mut self, id: RowId, code: RDKafkaErrorCode) -> Option<Flight> {
        let flight = self.window.suspect(id)?;
        if !flight.alone {
            // At debug: a batch that is too large names every record in it.
            tracing::debug!(source = self.ce_source, seq = id.seq, %code, "row was refused and is tried alone");
            return Some(flight);
        }
        self.window.block(&flight.key);
        let (store, key, error) = (self.store.clone(), flight.key.clone(), code.to_string());
        let policy = self.setup.tuning.relay_dead_policy.of(&key.topic, &self.setup.prefix);
        tracing::error!(source = self.ce_source, seq = id.seq, message_id = %id.id, topic = %key.topic, %code,
            ?policy, "row is dead");
        self.tasks.spawn(async move {
            let result = store.bury(id, &error, policy == Policy::Block).await;
            Event::Buried { id, key, result }
        });
        Some(flight)
    }

    pub(super) fn on_buried(&mut self, id: RowId, key: &Arc<Key>, result: Result<(), store::Error>) {
        // After a failure it is read again, goes alone again, and is buried again.
        self.note("bury", result.as_ref().err());
        self.floor.touch();
        self.window.buried(id, key, result.is_ok());
    }

    fn pause(&mut self, topic: &Arc<str>, code: RDKafkaErrorCode) {
        self.window.drop_topic(topic);
        self.cursors.outdate();
        if self.pauses.refused(topic, Instant::now()) {
            // Its rows hold no floor down any more.
            self.floor.touch();
            self.setup.stats.pause(topic, Some(code.to_string()));
            tracing::warn!(source = self.ce_source, %topic, %code, "topic is paused; its rows wait, the others go on");
        }
    }

    pub(super) fn ask_about_topics(&mut self, now: Instant) {
        for topic in self.pauses.due(now) {
            let ask = self.producers.ask(Some(topic.to_string()));
            self.tasks.spawn_blocking(move || Event::Topic { topic, answer: ask() });
        }
    }

    pub(super) fn on_topic(&mut self, topic: &Arc<str>, answer: Result<(), RDKafkaErrorCode>) {
        let now = Instant::now();
        match answer {
            Ok(()) => {
                self.pauses.good(topic);
                self.setup.stats.pause(topic, None);
                tracing::info!(source = self.ce_source, %topic, "topic goes on");
                // Its rows may lie below the floors, which were raised without them.
                self.forget_floors();
                self.pace.fetch = now;
            }
            Err(code) => {
                self.setup.stats.pause(topic, Some(code.to_string()));
                self.pauses.still(topic, now);
            }
        }
    }

    pub(super) fn mark(&mut self, now: Instant) {
        if self.running.mark {
            return;
        }
        let Some(ids) = self.marks.take(now) else { return };
        fail::fail_point!("relay.after_ack");
        let (store, delete) = (self.store.clone(), self.setup.tuning.relay_retention.is_zero());
        self.running.mark = true;
        self.tasks.spawn(async move {
            let result = if delete { store.delete(&ids).await } else { store.mark(&ids).await };
            Event::Marked { ids, result }
        });
    }

    pub(super) fn on_marked(&mut self, ids: Vec<RowId>, result: Result<u64, store::Error>) {
        self.running.mark = false;
        self.note("mark", result.as_ref().err());
        match result {
            Ok(rows) => {
                self.setup.stats.double_marks.fetch_add((ids.len() as u64).saturating_sub(rows), Relaxed);
                self.window.marked(&ids);
                self.floor.touch();
            }
            Err(_) => {
                let now = Instant::now();
                self.marks.put_back(ids, now, now + RETRY);
            }
        }
    }
}
