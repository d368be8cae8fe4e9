//! Keeping, losing and giving back buckets.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::super::lease::Round;
use super::super::store;
use super::{Error, Event, Pump, RETRY};

impl Pump {
    pub(super) fn renew_leases(&mut self, now: Instant) {
        if self.running.round || now < self.pace.round {
            return;
        }
        let (store, instance) = (self.store.clone(), self.setup.instance.clone());
        let (ttl, held, more) = (self.setup.tuning.relay_lease_ttl, self.leases.held(), !self.stopping);
        self.running.round = true;
        self.pace.round = now + self.setup.tuning.relay_lease_renew;
        self.tasks.spawn(async move { Event::Round(store.round(&instance, ttl, &held, more).await) });
    }

    pub(super) fn on_round(&mut self, result: Result<Round, store::Error>) -> Result<(), Error> {
        self.running.round = false;
        let now = Instant::now();
        self.note("lease", result.as_ref().err());
        let Ok(round) = result else {
            self.pace.round = now + RETRY.min(self.setup.tuning.relay_lease_renew);
            return Ok(());
        };
        let change = self.leases.renew(&round);
        let changes = change.gained.len() + change.lost.len();
        if changes > 0 {
            self.setup.stats.lease_changes.fetch_add(changes as u64, Relaxed);
            tracing::info!(
                source = self.ce_source,
                gained = change.gained.len(),
                lost = change.lost.len(),
                owned = self.leases.held().len(),
                instances = round.live,
                "buckets changed"
            );
        }
        for bucket in change.gained {
            self.cursors.forget(bucket);
            self.floor.restart();
            self.pace.fetch = now;
        }
        self.lose(&change.lost)?;
        let window = &self.window;
        for bucket in self.leases.leave(round.live, now, |bucket| window.is_busy(bucket)) {
            // No more rows of it from here on; it goes when what is in flight is acknowledged and marked.
            self.window.drop_bucket(bucket);
            self.cursors.rewind(bucket);
        }
        Ok(())
    }

    /// Another may own these buckets now, or soon.
    fn lose(&mut self, buckets: &[i16]) -> Result<(), Error> {
        for bucket in buckets {
            self.window.drop_bucket(*bucket);
            self.cursors.rewind(*bucket);
        }
        if buckets.iter().any(|bucket| self.window.flying(*bucket)) {
            // Rows in the producer's queue would still go out, perhaps minutes later: the queue is purged with its
            // producer. An unknown part of them was written; they are sent again, so the first of each is in order.
            tracing::warn!(source = self.ce_source, "lease lost with rows in flight: producer is purged");
            self.rebuild()?;
        }
        Ok(())
    }

    pub(super) fn expire_leases(&mut self, now: Instant) -> Result<(), Error> {
        let expired = self.leases.expire(now);
        if expired.is_empty() {
            return Ok(());
        }
        tracing::warn!(
            source = self.ce_source,
            buckets = expired.len(),
            "leases could not be renewed in time"
        );
        self.setup.stats.lease_changes.fetch_add(expired.len() as u64, Relaxed);
        self.lose(&expired)
    }

    pub(super) fn release_leases(&mut self, now: Instant) {
        if self.running.release || self.stopping {
            return;
        }
        let mut leases = self.leases.leaving(now);
        leases.retain(|(bucket, _)| !self.window.unsettled(*bucket));
        if leases.is_empty() {
            return;
        }
        self.running.release = true;
        let (store, instance) = (self.store.clone(), self.setup.instance.clone());
        self.tasks.spawn(async move {
            let result = store.release(&instance, &leases).await;
            Event::Released { buckets: leases.into_iter().map(|(bucket, _)| bucket).collect(), result }
        });
    }

    pub(super) fn on_released(&mut self, buckets: &[i16], result: Result<(), store::Error>) {
        self.running.release = false;
        self.note("release", result.as_ref().err());
        if result.is_ok() {
            self.leases.released(buckets);
            self.setup.stats.lease_changes.fetch_add(buckets.len() as u64, Relaxed);
            tracing::info!(source = self.ce_source, buckets = buckets.len(), "buckets handed over");
        }
    }
}
