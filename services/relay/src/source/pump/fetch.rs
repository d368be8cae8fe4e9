//! Fetching: when, how much, and what is done with the rows.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use waybill_outbox::BUCKETS;

use super::super::cursor::Page;
use super::super::intake::{Catch, take};
use super::super::row::RowId;
use super::super::store::{self, Ask, Fetched};
use super::super::window::Load;
use super::{Event, Pump, RETRY, Wake};

/// A topic's share of a bucket that nothing was acknowledged of for so long stands: its partition has no leader.
const PATIENCE: Duration = Duration::from_secs(1);

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

    /// What one topic may hold of one bucket.
    fn bucket_limit(&self) -> Load {
        let tuning = &self.setup.tuning;
        let buckets = usize::from(BUCKETS.unsigned_abs());
        let rows = (tuning.relay_in_flight_rows as usize / buckets).max(8);
        Load { rows, bytes: tuning.in_flight_bytes() / buckets }
    }

    pub(super) fn fetch(&mut self, now: Instant) {
        if self.running.fetch || now < self.pace.fetch || !self.has_room() {
            return;
        }
        self.check_connections();
        let limit = self.bucket_limit();
        let serving = self.leases.serving(now);
        let buckets = self.open(&serving, limit);
        let tuning = &self.setup.tuning;
        if buckets.is_empty() {
            self.pace.fetch = now + tuning.relay_poll_busy;
            return;
        }
        let full = self.window.heavy_topics(self.topic_limit());
        self.pace.crowded = buckets.len() < serving.len() || !full.is_empty() || !self.standing.is_empty();
        let ask = Ask { still: self.still(), full };
        let (window, rows) = (&self.window, i64::from(tuning.relay_batch));
        let known = |bucket, after| window.known_above(bucket, after);
        let pages = self.cursors.plan(&buckets, rows, limit.bytes as i64, known);
        let (number, store) = (self.window.begin_fetch(), self.store.clone());
        self.running.fetch = true;
        self.tasks.spawn(async move {
            let result = store.fetch(&pages, &ask).await;
            Event::Fetched { number, pages, result }
        });
    }

    /// The buckets that have room for new rows, and how many; notes which topics stand.
    ///
    /// A dead partition fills its share of its own buckets and no more: two partitions, so half of the buckets, fill
    /// half. Other topics in these buckets go on without it.
    fn open(&mut self, serving: &[i16], limit: Load) -> Vec<(i16, i64)> {
        let (mut buckets, mut standing) = (Vec::with_capacity(serving.len()), BTreeSet::new());
        for bucket in serving {
            let room = self.window.room(*bucket, limit, PATIENCE);
            buckets.extend(room.rows.map(|rows| (*bucket, rows as i64)));
            standing.extend(room.standing.into_iter().map(|topic| (*bucket, topic)));
        }
        let before = std::mem::replace(&mut self.standing, standing);
        if !self.standing.is_subset(&before) {
            // What began to stand holds no floor down any more.
            self.floor.touch();
        }
        for (bucket, _) in before.difference(&self.standing) {
            // Its rows may lie below the floor, which was raised without them.
            self.cursors.forget(*bucket);
            self.floor.restart();
        }
        buckets
    }

    pub(super) fn on_fetched(&mut self, number: u64, pages: &[Page], result: Result<Fetched, store::Error>) {
        self.running.fetch = false;
        let now = Instant::now();
        self.note("fetch", result.as_ref().err());
        let Ok(mut fetched) = result else {
            self.pace.fetch = now + RETRY;
            return;
        };
        if self.store.connections() != self.connections {
            // On another connection than the plan's: it may have been another server.
            self.forget_floors();
            self.window.end_fetch(number);
            self.pace.fetch = now;
            return;
        }
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
        let is_idle = catch.rows == 0 && !catch.more && !self.pace.crowded;
        let idle = tuning.relay_poll_idle;
        self.pace.fetch = if catch.more && catch.rows > 0 {
            now
        } else if !is_idle {
            now + tuning.relay_poll_busy
        } else {
            // Instances that became idle together do not ask together.
            now + idle.mul_f64(rand::random_range(0.75..1.25))
        };
    }
}
