//! Health and figures of a source, and the purge of old rows.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use rdkafka::error::RDKafkaErrorCode;

use super::super::store::{self, Purged, Sample};
use super::{ASK, Event, Pump};

/// What is known of the cluster.
#[derive(Debug)]
pub(super) struct Watch {
    /// When to ask the cluster; `None` while it is known to answer.
    ask: Option<Instant>,
    /// Kinds of calls to the database whose last one failed.
    failing: BTreeSet<&'static str>,
}

impl Watch {
    pub(super) fn new(now: Instant) -> Self {
        Self { ask: Some(now), failing: BTreeSet::new() }
    }

    pub(super) fn client_error(&mut self, code: RDKafkaErrorCode) {
        if code == RDKafkaErrorCode::AllBrokersDown {
            self.ask.get_or_insert_with(Instant::now);
        }
    }
}

impl Pump {
    /// One kind of call to the database ended: well, or with an error. Said once, until it changes.
    pub(super) fn note(&mut self, what: &'static str, error: Option<&store::Error>) {
        let (source, failing) = (&self.setup.database.name, &mut self.watch.failing);
        if let Some(error) = error {
            if failing.insert(what) {
                tracing::warn!(source = self.ce_source, what, %error, "database does not serve the relay");
            }
            self.setup.databases.set(source, Some(format!("{what}: {error}")));
            return;
        }
        failing.remove(what);
        if what == "lease" {
            // Some kinds are not tried again once a bucket is gone: the round speaks for the whole database.
            failing.clear();
        }
        if failing.is_empty() && self.setup.databases.set(source, None) {
            tracing::info!(source = self.ce_source, "database serves the relay");
        }
    }

    /// Asks until the cluster answers: at the start, which also warms the producer up, and after it was lost.
    pub(super) fn ask_cluster(&mut self, now: Instant) {
        if self.running.ask || self.stopping || self.watch.ask.is_none_or(|at| now < at) {
            return;
        }
        self.running.ask = true;
        let ask = self.producers.ask(None);
        self.tasks.spawn_blocking(move || Event::Cluster(ask()));
    }

    pub(super) fn on_cluster(&mut self, answer: Result<(), RDKafkaErrorCode>) {
        self.running.ask = false;
        let problem = answer.err().map(|code| code.to_string());
        self.watch.ask = problem.is_some().then(|| Instant::now() + ASK);
        let known = problem.clone();
        if self.setup.brokers.set(&self.setup.database.name, problem) {
            match known {
                Some(problem) => tracing::warn!(source = self.ce_source, problem, "Kafka does not answer"),
                None => tracing::info!(source = self.ce_source, "Kafka answers"),
            }
        }
    }

    pub(super) fn sample(&mut self, now: Instant) {
        if self.running.sample || now < self.pace.sample {
            return;
        }
        self.running.sample = true;
        self.pace.sample = now + self.setup.tuning.relay_sample_interval;
        let (store, held) = (self.store.clone(), self.leases.held());
        let buckets: Vec<i16> = held.into_iter().map(|(bucket, _)| bucket).collect();
        self.tasks.spawn(async move { Event::Sampled(store.sample(&buckets).await) });
    }

    pub(super) fn on_sampled(&mut self, result: Result<Sample, store::Error>) {
        self.running.sample = false;
        self.note("sample", result.as_ref().err());
        let Ok(sample) = result else { return };
        let stats = &self.setup.stats;
        stats.unsent.store(sample.unsent, Relaxed);
        stats.dead.store(sample.dead, Relaxed);
        stats.blocked.store(sample.blocked, Relaxed);
        stats.held.store(sample.held, Relaxed);
        stats.oldest_held_millis.store((sample.oldest_held * 1000.0) as u64, Relaxed);
        stats.oldest_millis.store((sample.oldest * 1000.0) as u64, Relaxed);
    }

    /// Purges in steps; the owner of bucket 0 does it for all.
    pub(super) fn purge(&mut self, now: Instant) {
        let tuning = &self.setup.tuning;
        let mine = self.leases.may_produce(0, now);
        if self.running.purge || !mine || now < self.pace.purge || tuning.relay_retention.is_zero() {
            return;
        }
        self.running.purge = true;
        let (store, after, retention) = (self.store.clone(), self.pace.purge_after, tuning.relay_retention);
        self.tasks.spawn(async move { Event::Purged(store.purge(after, retention).await) });
    }

    pub(super) fn on_purged(&mut self, result: Result<Purged, store::Error>) {
        self.running.purge = false;
        self.note("purge", result.as_ref().err());
        let next = result.ok().and_then(|purged| {
            self.setup.stats.purged.fetch_add(purged.rows.unsigned_abs(), Relaxed);
            purged.next
        });
        self.pace.purge_after = next.unwrap_or(0);
        if next.is_none() {
            self.pace.purge = Instant::now() + self.setup.tuning.relay_purge_interval;
        }
    }

    pub(super) fn count(&self) {
        let (stats, owned) = (&self.setup.stats, self.leases.len());
        stats.in_flight.store(self.window.in_flight().rows as u64, Relaxed);
        stats.buckets.store(owned as u64, Relaxed);
        stats.owner.store(owned > 0, Relaxed);
    }
}
