//! What the consumer is doing right now, for readiness, metrics and people.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering},
    },
};

/// Handle on the state of a [`Consumer`](crate::Consumer); cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Status(pub(crate) Arc<Inner>);

#[derive(Debug, Default)]
pub(crate) struct Inner {
    groups: Mutex<BTreeMap<String, GroupState>>,
    partitions: Mutex<BTreeMap<Key, Arc<PartitionState>>>,
}

/// Group, topic, partition.
type Key = (String, String, i32);

#[derive(Debug, Clone, Copy, Default)]
struct GroupState {
    joined: bool,
    connected: bool,
    /// Readiness needs it.
    must_join: bool,
}

/// A partition that makes no progress, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocked {
    /// Consumer group, with prefix.
    pub group: String,
    /// Topic, with prefix.
    pub topic: String,
    /// Partition.
    pub partition: i32,
    /// One of [`crate::metrics::REASONS`].
    pub reason: &'static str,
    /// The last error.
    pub error: String,
}

/// What lies between the loop and a partition's worker.
#[derive(Debug, Default)]
pub(crate) struct Buffered {
    pub(crate) records: AtomicUsize,
    pub(crate) bytes: AtomicUsize,
}

/// State of one assigned partition, written by its worker.
#[derive(Debug)]
pub(crate) struct PartitionState {
    pub(crate) group: String,
    pub(crate) topic: String,
    pub(crate) partition: i32,
    pub(crate) paused: AtomicBool,
    /// Why it stands still in the client, with records to read and nobody who paused it.
    stalled: Mutex<Option<(&'static str, String)>>,
    pub(crate) buffer: Buffered,
    /// The worker's batch.
    pub(crate) batch: Front,
    /// What earlier batches left and is still to be published.
    pub(crate) burial: Front,
}

/// How far one of a partition's two tasks is. Each writes its own: what ends in one says nothing of the other.
#[derive(Debug, Default)]
pub(crate) struct Front {
    /// Record timestamp of the oldest message taken and not finished, milliseconds; 0 when there is none.
    oldest_ms: AtomicI64,
    blocked: Mutex<Option<(&'static str, String)>>,
}

impl Front {
    pub(crate) fn set_oldest(&self, timestamp_ms: Option<i64>) {
        self.oldest_ms.store(timestamp_ms.unwrap_or(0), Ordering::Relaxed);
    }

    pub(crate) fn block(&self, reason: &'static str, error: String) {
        *lock(&self.blocked) = Some((reason, error));
    }

    pub(crate) fn unblock(&self) {
        *lock(&self.blocked) = None;
    }
}

impl PartitionState {
    pub(crate) fn new(group: &str, topic: &str, partition: i32) -> Arc<Self> {
        Arc::new(Self {
            group: group.to_owned(),
            topic: topic.to_owned(),
            partition,
            paused: AtomicBool::new(false),
            stalled: Mutex::default(),
            buffer: Buffered::default(),
            batch: Front::default(),
            burial: Front::default(),
        })
    }

    /// Seconds since the oldest unfinished message was written; 0 when there is none.
    pub(crate) fn oldest_age(&self, now_ms: i64) -> f64 {
        let both = [&self.batch, &self.burial].map(|front| front.oldest_ms.load(Ordering::Relaxed));
        match both.into_iter().filter(|oldest| *oldest != 0).min() {
            None => 0.0,
            Some(oldest) => now_ms.saturating_sub(oldest).max(0) as f64 / 1_000.0,
        }
    }

    /// Returns whether that is news.
    pub(crate) fn set_stalled(&self, why: Option<(&'static str, String)>) -> bool {
        let mut stalled = lock(&self.stalled);
        let news = stalled.as_ref().map(|(reason, _)| *reason) != why.as_ref().map(|(reason, _)| *reason);
        *stalled = why;
        news
    }

    pub(crate) fn blocked(&self) -> Option<Blocked> {
        let stalled = || lock(&self.stalled).clone();
        // The batch may wait for the burial, but not the other way round.
        let batch = || lock(&self.batch.blocked).clone();
        let (reason, error) = lock(&self.burial.blocked).clone().or_else(batch).or_else(stalled)?;
        let (group, topic, partition) = (self.group.clone(), self.topic.clone(), self.partition);
        Some(Blocked { group, topic, partition, reason, error })
    }
}

impl Status {
    /// Whether every group has joined and reaches a broker.
    ///
    /// A blocked partition is not a reason to be unready: another instance would be blocked by the same message.
    ///
    /// # Errors
    /// Names the group and what it waits for.
    pub fn ready(&self) -> Result<(), String> {
        for (group, state) in lock(&self.0.groups).iter().filter(|(_, state)| state.must_join) {
            if !state.connected {
                return Err(format!("group {group}: no broker is reachable"));
            }
            if !state.joined {
                return Err(format!("group {group}: not joined yet"));
            }
        }
        Ok(())
    }

    /// Number of partitions that this process is assigned, over all groups.
    #[must_use]
    pub fn assigned(&self) -> usize {
        lock(&self.0.partitions).len()
    }

    /// Number of partitions of a topic, with prefix, that this process is assigned, over all groups.
    #[must_use]
    pub fn assigned_of(&self, topic: &str) -> usize {
        lock(&self.0.partitions).keys().filter(|(_, of, _)| of == topic).count()
    }

    /// Partitions that make no progress now.
    #[must_use]
    pub fn blocked(&self) -> Vec<Blocked> {
        self.0.partitions().iter().filter_map(|partition| partition.blocked()).collect()
    }

    /// Number of partitions whose buffer is full, so that nothing is fetched for them.
    #[must_use]
    pub fn paused(&self) -> usize {
        self.0.partitions().iter().filter(|partition| partition.paused.load(Ordering::Relaxed)).count()
    }

    /// Records and bytes that wait in the buffers, over all partitions.
    #[must_use]
    pub fn buffered(&self) -> (usize, usize) {
        let partitions = self.0.partitions();
        let sum = |read: fn(&Buffered) -> &AtomicUsize| {
            partitions.iter().map(|partition| read(&partition.buffer).load(Ordering::Relaxed)).sum()
        };
        (sum(|buffer| &buffer.records), sum(|buffer| &buffer.bytes))
    }

    pub(crate) fn add_group(&self, group: &str, must_join: bool) {
        lock(&self.0.groups).entry(group.to_owned()).or_default().must_join = must_join;
    }

    pub(crate) fn set_joined(&self, group: &str) {
        self.group(group, |state| *state = GroupState { joined: true, connected: true, ..*state });
    }

    pub(crate) fn set_left(&self, group: &str) {
        self.group(group, |state| state.joined = false);
    }

    /// Returns whether that is news.
    pub(crate) fn set_connected(&self, group: &str, connected: bool) -> bool {
        self.group(group, |state| std::mem::replace(&mut state.connected, connected) != connected)
    }

    pub(crate) fn is_connected(&self, group: &str) -> bool {
        self.group(group, |state| state.connected)
    }

    fn group<T>(&self, group: &str, change: impl FnOnce(&mut GroupState) -> T) -> T {
        change(lock(&self.0.groups).entry(group.to_owned()).or_default())
    }

    pub(crate) fn add(&self, partition: &Arc<PartitionState>) {
        lock(&self.0.partitions).insert(key(partition), Arc::clone(partition));
    }

    pub(crate) fn remove(&self, partition: &PartitionState) {
        lock(&self.0.partitions).remove(&key(partition));
    }
}

impl Inner {
    pub(crate) fn partitions(&self) -> Vec<Arc<PartitionState>> {
        lock(&self.partitions).values().cloned().collect()
    }
}

fn key(partition: &PartitionState) -> Key {
    (partition.group.clone(), partition.topic.clone(), partition.partition)
}

/// The maps hold plain values, whole after every statement: a panic elsewhere does not spoil them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics;

    fn reason(partition: &PartitionState) -> Option<&'static str> {
        partition.blocked().map(|blocked| blocked.reason)
    }

    #[test]
    fn what_ends_in_one_task_of_a_partition_hides_nothing_of_the_other() {
        let partition = PartitionState::new("group", "topic", 0);
        partition.burial.block(metrics::DEAD_LETTER, "refused".to_owned());
        partition.batch.block(metrics::STOPPED, "a bad deployment".to_owned());
        assert_eq!(reason(&partition), Some(metrics::DEAD_LETTER));
        partition.burial.unblock();
        assert_eq!(reason(&partition), Some(metrics::STOPPED));
        partition.burial.block(metrics::DEAD_LETTER, "refused".to_owned());
        partition.batch.unblock();
        assert_eq!(reason(&partition), Some(metrics::DEAD_LETTER));
        partition.burial.unblock();
        assert_eq!(reason(&partition), None);
    }

    #[test]
    fn a_partition_is_as_old_as_the_older_of_its_tasks() {
        let partition = PartitionState::new("group", "topic", 0);
        partition.burial.set_oldest(Some(1_000));
        partition.batch.set_oldest(Some(61_000));
        assert_eq!(partition.oldest_age(71_000), 70.0);
        partition.burial.set_oldest(None);
        assert_eq!(partition.oldest_age(71_000), 10.0);
        // Of the same millisecond: still two.
        partition.burial.set_oldest(Some(61_000));
        partition.burial.set_oldest(None);
        assert_eq!(partition.oldest_age(71_000), 10.0);
        partition.batch.set_oldest(None);
        assert_eq!(partition.oldest_age(71_000), 0.0);
    }
}
