//! The rows in memory, and the order in which they may leave. No I/O.
//!
//! **Promises.** At most one row per (topic, key) is in flight; the next one leaves after the broker acknowledged
//! it, in `seq` order. A row that was handed out is not handed out again while a fetch could still list it as
//! unsent. Whatever is dropped from memory is dropped with every later row of its key.

mod lanes;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use lanes::Lanes;

use super::row::{Key, Row, RowId};

/// Rows and their bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Load {
    /// Number of rows.
    pub(crate) rows: usize,
    /// Their bytes.
    pub(crate) bytes: usize,
}

/// Where a known row stands.
#[derive(Debug)]
enum Stage {
    /// In memory, not handed to the producer.
    Waiting { bucket: i16 },
    /// The producer has it.
    InFlight(Flight),
    /// The broker has it; the mark has not committed.
    Acked { bucket: i16 },
    /// The mark committed while fetch number `fetch` was the latest one begun.
    Marked { bucket: i16, fetch: u64 },
}

impl Stage {
    fn bucket(&self) -> i16 {
        match self {
            Self::InFlight(flight) => flight.bucket,
            Self::Waiting { bucket } | Self::Acked { bucket } | Self::Marked { bucket, .. } => *bucket,
        }
    }
}

/// What may be read of a bucket.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Room {
    /// So many new rows; `None`: a topic holds all that it may of the bucket, and moves.
    pub(crate) rows: Option<usize>,
    /// Topics that are left out, because their partition takes nothing.
    pub(crate) standing: Vec<Arc<str>>,
}

/// A row that the producer has.
#[derive(Debug, Clone)]
pub(crate) struct Flight {
    /// Topic and key.
    pub(crate) key: Arc<Key>,
    /// Bucket.
    pub(crate) bucket: i16,
    /// [`Row::bytes`].
    pub(crate) bytes: usize,
    /// When the row was written.
    pub(crate) created_at: DateTime<Utc>,
    /// Sent on the producer that sends single records.
    pub(crate) alone: bool,
    /// [`Row::retried`].
    pub(crate) retried: bool,
}

/// Why a row was not taken in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It waits for its turn.
    New,
    /// It is known already.
    Known,
    /// Its key was just blocked; the next fetch shows it as blocked.
    Blocked,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Window {
    rows: HashMap<RowId, Stage>,
    /// Known rows by `seq` alone, to compare with what a fetch sees behind and above its cursor.
    seqs: HashMap<i16, BTreeMap<i64, Load>>,
    lanes: Lanes,
    /// Rows that failed in company: they go alone next time.
    suspects: HashSet<RowId>,
    /// Keys with a dead row, and the fetch that was the latest begun when that committed (`MAX`: not yet).
    blocked: HashMap<Arc<Key>, u64>,
    in_flight: Load,
    fetch: u64,
}

impl Window {
    /// Numbers a fetch that is about to begin.
    pub(crate) fn begin_fetch(&mut self) -> u64 {
        self.fetch += 1;
        self.fetch
    }

    /// Everything that fetch number `fetch` listed has been handled.
    pub(crate) fn end_fetch(&mut self, fetch: u64) {
        // Rule: a marked id stays known until one more fetch, begun after the mark committed, has been handled.
        // A fetch begun before may still list it as unsent; forgotten too early, it would be sent twice.
        let (rows, seqs) = (&mut self.rows, &mut self.seqs);
        rows.retain(|id, stage| {
            let Stage::Marked { bucket, fetch: marked } = *stage else { return true };
            if marked < fetch {
                forget(seqs, bucket, id.seq);
            }
            marked >= fetch
        });
        self.blocked.retain(|_, buried| *buried >= fetch);
    }

    /// Whether some row of the bucket with this `seq` is known.
    pub(crate) fn knows(&self, bucket: i16, seq: i64) -> bool {
        self.seqs.get(&bucket).is_some_and(|seqs| seqs.contains_key(&seq))
    }

    /// Known rows of a bucket above a `seq`. Those that were marked meanwhile count too.
    pub(crate) fn known_above(&self, bucket: i16, after: i64) -> Load {
        let seqs = self.seqs.get(&bucket).into_iter().flat_map(|seqs| seqs.range(after + 1..));
        seqs.fold(Load::default(), |sum, (_, load)| Load {
            rows: sum.rows + load.rows,
            bytes: sum.bytes + load.bytes,
        })
    }

    /// Takes in a row that a fetch listed as unsent.
    pub(crate) fn take(&mut self, row: Row) -> Taken {
        if self.rows.contains_key(&row.id) {
            return Taken::Known;
        }
        if self.blocked.contains_key(&row.key) {
            return Taken::Blocked;
        }
        self.rows.insert(row.id, Stage::Waiting { bucket: row.bucket });
        let load = self.seqs.entry(row.bucket).or_default().entry(row.id.seq).or_default();
        (load.rows, load.bytes) = (load.rows + 1, load.bytes + row.bytes());
        self.lanes.push(row);
        Taken::New
    }

    /// The row with the lowest `seq` that may leave now; it counts as in flight from here on. `limit` bounds the
    /// rows in flight per topic.
    pub(crate) fn next(&mut self, limit: usize) -> Option<(Row, bool)> {
        // Rule: at most one row in flight per (topic, key). A row that fails then blocks its key alone, and
        // nothing of the key is behind it in the producer's queue.
        let row = self.lanes.pop(limit)?;
        let alone = self.suspects.contains(&row.id);
        let flight = Flight {
            key: row.key.clone(),
            bucket: row.bucket,
            bytes: row.bytes(),
            created_at: row.created_at,
            alone,
            retried: row.retried,
        };
        self.in_flight.rows += 1;
        self.in_flight.bytes += flight.bytes;
        self.rows.insert(row.id, Stage::InFlight(flight));
        Some((row, alone))
    }

    /// The broker has the row: the next one of its key may leave.
    pub(crate) fn acked(&mut self, id: RowId) -> Option<Flight> {
        let flight = self.land(id)?;
        self.rows.insert(id, Stage::Acked { bucket: flight.bucket });
        self.suspects.remove(&id);
        self.lanes.landed(&flight);
        Some(flight)
    }

    /// The row was not sent, or nobody knows: it and every later row of its key leave memory, to be read again.
    pub(crate) fn abandon(&mut self, id: RowId) -> Option<Flight> {
        let flight = self.land(id)?;
        self.remove(id);
        self.lanes.landed(&flight);
        for id in self.lanes.drop_lane(&flight.key) {
            self.remove(id);
        }
        Some(flight)
    }

    /// Like [`Window::abandon`]; next time the row goes alone.
    pub(crate) fn suspect(&mut self, id: RowId) -> Option<Flight> {
        let flight = self.abandon(id)?;
        self.suspects.insert(id);
        Some(flight)
    }

    /// The key's row is about to be declared dead: nothing of the key comes in until a fetch that began after
    /// [`Window::buried`] shows what is blocked.
    pub(crate) fn block(&mut self, key: &Arc<Key>) {
        self.blocked.insert(key.clone(), u64::MAX);
    }

    /// The dead row's transaction ended; `committed` says how.
    pub(crate) fn buried(&mut self, id: RowId, key: &Arc<Key>, committed: bool) {
        if committed {
            self.suspects.remove(&id);
            self.blocked.insert(key.clone(), self.fetch);
        } else {
            self.blocked.remove(key);
        }
    }

    /// The marks of these rows committed.
    pub(crate) fn marked(&mut self, ids: &[RowId]) {
        for id in ids {
            if let Some(stage @ Stage::Acked { .. }) = self.rows.get_mut(id) {
                *stage = Stage::Marked { bucket: stage.bucket(), fetch: self.fetch };
            }
        }
    }

    /// Waiting rows of a topic leave memory.
    pub(crate) fn drop_topic(&mut self, topic: &str) {
        self.drop_lanes(|key, _| &*key.topic == topic);
    }

    /// Waiting rows of a bucket leave memory.
    pub(crate) fn drop_bucket(&mut self, bucket: i16) {
        self.drop_lanes(|_, b| b == bucket);
    }

    /// All waiting rows leave memory.
    pub(crate) fn drop_waiting(&mut self) {
        self.drop_lanes(|_, _| true);
    }

    /// All waiting rows and all rows in flight leave memory: the producer that had them is gone.
    pub(crate) fn drop_unacked(&mut self) {
        let flying = self.rows.iter().filter(|(_, stage)| matches!(stage, Stage::InFlight(_)));
        for id in flying.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.abandon(id);
        }
        self.drop_waiting();
        self.suspects.clear();
    }

    /// Rows in flight.
    pub(crate) fn in_flight(&self) -> Load {
        self.in_flight
    }

    /// Rows in flight and waiting.
    pub(crate) fn held(&self) -> Load {
        let waiting = self.lanes.waiting();
        Load { rows: self.in_flight.rows + waiting.rows, bytes: self.in_flight.bytes + waiting.bytes }
    }

    /// The own clock.
    pub(crate) fn tick(&mut self, now: Instant) {
        self.lanes.tick(now);
    }

    /// Whether rows of a bucket are in flight or wait.
    pub(crate) fn is_busy(&self, bucket: i16) -> bool {
        self.lanes.is_busy(bucket)
    }

    /// What a bucket has room for, when each of its topics may hold `limit`. A topic stands that holds all of it while
    /// none was acknowledged for `patience`, until half of it is free again.
    pub(crate) fn room(&mut self, bucket: i16, limit: Load, patience: Duration) -> Room {
        let mut room = Room { rows: Some(limit.rows), standing: Vec::new() };
        for (topic, load, stands) in self.lanes.shares(bucket, limit, patience) {
            if stands {
                room.standing.push(topic.clone());
            } else {
                let free = limit.rows.saturating_sub(load.rows);
                let free = Some(free).filter(|rows| *rows > 0 && load.bytes < limit.bytes);
                room.rows = room.rows.min(free);
            }
        }
        room
    }

    /// Topics that hold at least `limit` rows.
    pub(crate) fn heavy_topics(&self, limit: usize) -> Vec<Arc<str>> {
        self.lanes.heavy_topics(limit)
    }

    /// Whether rows of a bucket are in flight.
    pub(crate) fn flying(&self, bucket: i16) -> bool {
        self.rows.values().any(|stage| matches!(stage, Stage::InFlight(f) if f.bucket == bucket))
    }

    /// Whether rows of a bucket are in flight, or acknowledged and not marked.
    pub(crate) fn unsettled(&self, bucket: i16) -> bool {
        self.rows.values().any(|stage| match stage {
            Stage::InFlight(flight) => flight.bucket == bucket,
            Stage::Acked { bucket: acked } => *acked == bucket,
            Stage::Waiting { .. } | Stage::Marked { .. } => false,
        })
    }

    /// Whether any row is in flight, or acknowledged and not marked.
    pub(crate) fn any_unsettled(&self) -> bool {
        self.rows.values().any(|stage| matches!(stage, Stage::InFlight(_) | Stage::Acked { .. }))
    }

    fn land(&mut self, id: RowId) -> Option<Flight> {
        let Some(Stage::InFlight(flight)) = self.rows.get(&id) else { return None };
        let flight = flight.clone();
        self.in_flight.rows -= 1;
        self.in_flight.bytes -= flight.bytes;
        Some(flight)
    }

    fn drop_lanes(&mut self, chosen: impl Fn(&Key, i16) -> bool) {
        for id in self.lanes.drop_lanes(chosen) {
            self.remove(id);
        }
    }

    fn remove(&mut self, id: RowId) {
        if let Some(stage) = self.rows.remove(&id) {
            forget(&mut self.seqs, stage.bucket(), id.seq);
        }
    }
}

/// One row with this `seq` is known no more. Its bytes stay counted while another one, of a server that drew the
/// `seq` again, is known.
fn forget(seqs: &mut HashMap<i16, BTreeMap<i64, Load>>, bucket: i16, seq: i64) {
    let Some(of_bucket) = seqs.get_mut(&bucket) else { return };
    if let Some(load) = of_bucket.get_mut(&seq) {
        load.rows -= 1;
        if load.rows == 0 {
            of_bucket.remove(&seq);
        }
    }
}
