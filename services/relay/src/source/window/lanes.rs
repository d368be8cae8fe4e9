//! Waiting rows: one lane per (topic, key), and per topic the heads of the lanes that may move.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::row::{Key, Row, RowId};
use super::{Flight, Load};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    lanes: HashMap<Arc<Key>, Lane>,
    topics: HashMap<Arc<str>, Topic>,
    shares: BTreeMap<i16, HashMap<Arc<str>, Share>>,
    waiting: Load,
    now: Option<Instant>,
}

/// What one topic holds of a bucket: rows of one partition.
#[derive(Debug, Default)]
struct Share {
    load: Load,
    /// When a row of it was acknowledged last, or the first one came.
    moved: Option<Instant>,
    /// It was full and did not move, and has not yet come down to half since.
    stands: bool,
}

impl Share {
    /// Judges anew. Not before half of it is free does it stop to stand: a partition that takes one row now and then
    /// would else be read, and passed over, in turn.
    fn judge(&mut self, limit: Load, patience: Duration, now: Option<Instant>) {
        let full = self.load.rows >= limit.rows || self.load.bytes >= limit.bytes;
        let half = self.load.rows * 2 > limit.rows || self.load.bytes * 2 > limit.bytes;
        let still =
            self.moved.zip(now).is_some_and(|(moved, now)| now.saturating_duration_since(moved) >= patience);
        self.stands = if self.stands { half } else { full && still };
    }
}

#[derive(Debug, Default)]
struct Lane {
    bucket: i16,
    waiting: BTreeMap<RowId, Row>,
    busy: bool,
}

#[derive(Debug, Default)]
struct Topic {
    /// Heads of the lanes that have nothing in flight.
    ready: BTreeMap<RowId, Arc<Key>>,
    in_flight: usize,
    held: usize,
}

impl Lanes {
    pub(super) fn push(&mut self, row: Row) {
        add(&mut self.waiting, row.bytes());
        let share = self.shares.entry(row.bucket).or_default().entry(row.key.topic.clone()).or_default();
        share.moved = share.moved.or(self.now);
        add(&mut share.load, row.bytes());
        let lane = self.lanes.entry(row.key.clone()).or_default();
        let topic = self.topics.entry(row.key.topic.clone()).or_default();
        topic.held += 1;
        lane.bucket = row.bucket;
        if !lane.busy {
            if let Some((head, _)) = lane.waiting.first_key_value() {
                topic.ready.remove(head);
            }
            let head = lane.waiting.first_key_value().map_or(row.id, |(head, _)| row.id.min(*head));
            topic.ready.insert(head, row.key.clone());
        }
        lane.waiting.insert(row.id, row);
    }

    /// The lowest head among topics with fewer than `limit` rows in flight.
    pub(super) fn pop(&mut self, limit: usize) -> Option<Row> {
        let open = self.topics.values_mut().filter(|topic| topic.in_flight < limit);
        let topic = open
            .filter_map(|topic| {
                topic.ready.first_key_value().map(|(head, _)| *head).map(|head| (head, topic))
            })
            .min_by_key(|(head, _)| *head)?
            .1;
        let (head, key) = topic.ready.pop_first()?;
        topic.in_flight += 1;
        let lane = self.lanes.get_mut(&key)?;
        lane.busy = true;
        let row = lane.waiting.remove(&head)?;
        subtract(&mut self.waiting, row.bytes());
        Some(row)
    }

    /// The row in flight of a lane is so no more.
    pub(super) fn landed(&mut self, flight: &Flight) {
        self.leave(flight.bucket, &flight.key.topic, flight.bytes, true);
        let topic = self.topics.entry(flight.key.topic.clone()).or_default();
        topic.in_flight = topic.in_flight.saturating_sub(1);
        topic.held = topic.held.saturating_sub(1);
        if let Some(lane) = self.lanes.get_mut(&flight.key) {
            lane.busy = false;
            match lane.waiting.first_key_value() {
                Some((head, _)) => drop(topic.ready.insert(*head, flight.key.clone())),
                None => drop(self.lanes.remove(&flight.key)),
            }
        }
        if topic.held == 0 {
            self.topics.remove(&flight.key.topic);
        }
    }

    /// Empties the waiting rows of one lane, and names them.
    pub(super) fn drop_lane(&mut self, key: &Arc<Key>) -> Vec<RowId> {
        let Some(lane) = self.lanes.get_mut(key) else { return Vec::new() };
        if let Some(topic) = self.topics.get_mut(&key.topic) {
            if let (false, Some((head, _))) = (lane.busy, lane.waiting.first_key_value()) {
                topic.ready.remove(head);
            }
            topic.held -= lane.waiting.len();
            if topic.held == 0 {
                self.topics.remove(&key.topic);
            }
        }
        let rows = std::mem::take(&mut lane.waiting);
        if !lane.busy {
            self.lanes.remove(key);
        }
        for row in rows.values() {
            subtract(&mut self.waiting, row.bytes());
            self.leave(row.bucket, &row.key.topic, row.bytes(), false);
        }
        rows.into_keys().collect()
    }

    /// [`Lanes::drop_lane`] of every lane that is chosen by its key and bucket.
    pub(super) fn drop_lanes(&mut self, chosen: impl Fn(&Key, i16) -> bool) -> Vec<RowId> {
        let keys =
            self.lanes.iter().filter(|(key, lane)| chosen(key, lane.bucket)).map(|(key, _)| key.clone());
        let keys: Vec<_> = keys.collect();
        keys.iter().flat_map(|key| self.drop_lane(key)).collect()
    }

    pub(super) fn waiting(&self) -> Load {
        self.waiting
    }

    /// The own clock.
    pub(super) fn tick(&mut self, now: Instant) {
        self.now = Some(now);
    }

    /// Whether rows of a bucket are in flight or wait.
    pub(super) fn is_busy(&self, bucket: i16) -> bool {
        self.shares.get(&bucket).is_some_and(|shares| !shares.is_empty())
    }

    /// Topics with what they hold of a bucket, and whether they stand: see [`super::Window::room`].
    pub(super) fn shares(
        &mut self,
        bucket: i16,
        limit: Load,
        patience: Duration,
    ) -> impl Iterator<Item = (&Arc<str>, Load, bool)> {
        let now = self.now;
        let shares = self.shares.get_mut(&bucket).into_iter().flatten();
        shares.map(move |(topic, share)| {
            share.judge(limit, patience, now);
            (topic, share.load, share.stands)
        })
    }

    fn leave(&mut self, bucket: i16, topic: &Arc<str>, bytes: usize, moved: bool) {
        let Some(shares) = self.shares.get_mut(&bucket) else { return };
        let Some(share) = shares.get_mut(topic) else { return };
        subtract(&mut share.load, bytes);
        if moved {
            share.moved = self.now;
        }
        if share.load.rows == 0 {
            shares.remove(topic);
        }
    }

    pub(super) fn heavy_topics(&self, limit: usize) -> Vec<Arc<str>> {
        self.topics.iter().filter(|(_, topic)| topic.held >= limit).map(|(name, _)| name.clone()).collect()
    }
}

fn add(load: &mut Load, bytes: usize) {
    load.rows += 1;
    load.bytes += bytes;
}

fn subtract(load: &mut Load, bytes: usize) {
    load.rows -= 1;
    load.bytes -= bytes;
}
