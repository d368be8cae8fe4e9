//! Fetching: when, how much, and what is done with the rows.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use super::super::cursor::Page;
use super::super::intake::{Catch, take};
use super::super::row::RowId;
use super::super::store::{self, Fetched};
use super::{Event, Pump, RETRY, Wake};

impl Pump {
    /// Whether memory takes another batch.
    pub(super) fn has_room(&self) -> bool {
        let (held, tuning) = (self.window.held(), &self.setup.tuning);
        let rows = tuning.relay_in_flight_rows as usize;
        held.rows + (tuning.relay_batch as usize).min(rows / 2) <= rows
            && held.bytes < tuning.in_flight_bytes()
    }

    /// Rows that one topic may hold, so that a topic without brokers does not take the others' room.
    pub(super) fn topic_limit(&self) -> usize {
        self.setup.tuning.relay_in_flight_rows as usize * 3 / 4
    }

    pub(super) fn fetch(&mut self, now: Instant) {
        if self.running.fetch || now < self.pace.fetch || !self.has_room() {
            return;
        }
        let tuning = &self.setup.tuning;
        if self.pace.idle || now >= self.pace.rescan {
            self.cursors.rescan();
            self.pace.rescan = now + tuning.relay_rescan;
        }
        // A dead partition fills its own buckets, and no more.
        let (rows, bytes) = (tuning.relay_in_flight_rows as usize / 8, tuning.in_flight_bytes() / 8);
        let mut buckets = self.leases.serving(now);
        let serving = buckets.len();
        buckets.retain(|bucket| {
            let held = self.window.held_by(*bucket);
            held.rows < rows && held.bytes < bytes
        });
        if buckets.is_empty() {
            self.pace.fetch = now + tuning.relay_poll_busy;
            return;
        }
        let mut without = self.window.heavy_topics(self.topic_limit());
        self.pace.crowded = buckets.len() < serving || !without.is_empty();
        without.extend(self.paused.keys().cloned());
        let pages = self.cursors.plan(&buckets, i64::from(tuning.relay_batch));
        let (number, store) = (self.window.begin_fetch(), self.store.clone());
        self.running.fetch = true;
        self.tasks.spawn(async move {
            let result = store.fetch(&pages, &without).await;
            Event::Fetched { number, pages, result }
        });
    }

    pub(super) fn on_fetched(&mut self, number: u64, pages: &[Page], result: Result<Fetched, store::Error>) {
        self.running.fetch = false;
        let now = Instant::now();
        self.note("fetch", result.as_ref().err());
        let Ok(mut fetched) = result else {
            self.pace.fetch = now + RETRY;
            return;
        };
        let mut catch = Catch::default();
        let most = i64::from(self.setup.tuning.relay_batch);
        for page in pages {
            let listed = fetched.buckets.remove(&page.bucket).unwrap_or_default();
            take(&mut self.window, &mut self.cursors, page, listed, most, &mut catch);
        }
        self.window.end_fetch(number);
        self.hold(std::mem::take(&mut catch.behind_dead));
        self.schedule(&catch, now);
    }

    /// Rows behind a dead one leave the index, so that they are not read again and again before the others.
    fn hold(&mut self, ids: Vec<RowId>) {
        if !ids.is_empty() {
            let store = self.store.clone();
            self.tasks.spawn(async move { Event::Held(store.hold(&ids).await) });
        }
    }

    pub(super) fn on_held(&mut self, result: Result<u64, store::Error>) {
        // After a failure they are met again by the next fetch.
        self.note("hold", result.as_ref().err());
        self.setup.stats.held.fetch_add(result.unwrap_or(0), Relaxed);
    }

    fn schedule(&mut self, catch: &Catch, now: Instant) {
        let (tuning, stats) = (&self.setup.tuning, &self.setup.stats);
        stats.late_commits.fetch_add(catch.late as u64, Relaxed);
        if catch.rows > 0 {
            let wakes = match self.pace.wake {
                Wake::Hint => &stats.wakes_by_hint,
                Wake::Poll => &stats.wakes_by_poll,
            };
            wakes.fetch_add(1, Relaxed);
        }
        self.pace.wake = Wake::Poll;
        // What was left out for want of room is not known to be empty.
        self.pace.idle = catch.rows == 0 && !catch.more && !self.pace.crowded;
        let idle = tuning.relay_poll_idle;
        self.pace.fetch = if catch.more && catch.rows > 0 {
            now
        } else if !self.pace.idle {
            now + tuning.relay_poll_busy
        } else {
            // Instances that became idle together do not ask together.
            now + idle.mul_f64(rand::random_range(0.75..1.25))
        };
    }
}
