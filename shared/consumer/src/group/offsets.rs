//! Committed offsets: after the database's commit, contiguous, never backwards, never for a partition given up.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use rdkafka::{
    Offset, TopicPartitionList,
    consumer::{CommitMode, Consumer as _},
    error::KafkaError,
};

use super::{Client, Key};

/// The one place that commits.
#[derive(Default)]
pub(super) struct Offsets {
    positions: Mutex<HashMap<Key, Position>>,
    /// Held during a commit, so that giving up a partition waits for one under way: it could otherwise arrive after
    /// the next owner's and move the group back.
    committing: tokio::sync::Mutex<()>,
    epoch: AtomicU64,
}

/// Next offsets to be read; `committed` is what the broker has acknowledged in this assignment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Position {
    epoch: u64,
    finished: i64,
    committed: i64,
}

const NOTHING: i64 = -1;

impl Offsets {
    /// Begins an assignment; returns its epoch, by which a worker of an earlier one is told apart.
    pub(super) fn assign(&self, key: Key) -> u64 {
        let epoch = self.epoch.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(key, Position { epoch, finished: NOTHING, committed: NOTHING });
        epoch
    }

    /// Everything of the partition before `next` is finished.
    pub(super) fn finished(&self, key: &Key, epoch: u64, next: i64) {
        if let Some(position) = self.lock().get_mut(key).filter(|position| position.epoch == epoch) {
            position.finished = position.finished.max(next);
        }
    }

    /// What the broker has acknowledged in this assignment; -1: nothing yet.
    pub(super) fn acknowledged(&self, key: &Key, epoch: u64) -> i64 {
        let positions = self.lock();
        let position = positions.get(key).filter(|position| position.epoch == epoch);
        position.map_or(NOTHING, |position| position.committed)
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.lock().values().any(|position| position.finished > position.committed)
    }

    pub(super) async fn commit(&self, client: &Arc<Client>) {
        let _one_at_a_time = self.committing.lock().await;
        self.commit_locked(client).await;
    }

    /// Commits a last time and forgets the partitions; when it returns, no commit of theirs is under way.
    pub(super) async fn release(&self, keys: &[Key], client: &Arc<Client>) {
        let _one_at_a_time = self.committing.lock().await;
        self.commit_locked(client).await;
        self.forget(keys);
    }

    /// Forgets partitions that were lost: their offsets are another member's now.
    pub(super) fn forget(&self, keys: &[Key]) {
        let mut positions = self.lock();
        for key in keys {
            positions.remove(key);
        }
    }

    async fn commit_locked(&self, client: &Arc<Client>) {
        let dirty = self.dirty();
        if dirty.is_empty() {
            return;
        }
        let (client, list) = (Arc::clone(client), dirty.clone());
        // Synchronous: of an asynchronous commit the client never says what became of it.
        let committed =
            tokio::task::spawn_blocking(move || client.commit(&to_list(&list)?, CommitMode::Sync));
        match committed.await {
            Ok(Ok(())) => self.committed(&dirty),
            // A rebalance is under way or no coordinator is there; it stays dirty and is tried again.
            Ok(Err(error)) => tracing::debug!(%error, "offset commit"),
            Err(error) => tracing::error!(%error, "offset commit ended early"),
        }
    }

    fn dirty(&self) -> Vec<(Key, i64)> {
        let positions = self.lock();
        let dirty = positions.iter().filter(|(_, position)| position.finished > position.committed);
        dirty.map(|(key, position)| (key.clone(), position.finished)).collect()
    }

    fn committed(&self, list: &[(Key, i64)]) {
        let mut positions = self.lock();
        for (key, next) in list {
            if let Some(position) = positions.get_mut(key) {
                position.committed = position.committed.max(*next);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Position>> {
        self.positions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `commit` takes the *next* offset as it is, unlike the client's calls that take a message and add one themselves.
fn to_list(offsets: &[(Key, i64)]) -> Result<TopicPartitionList, KafkaError> {
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for ((topic, partition), next) in offsets {
        list.add_partition_offset(topic, *partition, Offset::Offset(*next))?;
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(partition: i32) -> Key {
        ("t".into(), partition)
    }

    #[test]
    fn the_next_offset_goes_into_the_list_unchanged() {
        let list = to_list(&[(key(3), 8)]).unwrap();
        assert_eq!(list.elements()[0].offset(), Offset::Offset(8));
    }

    #[test]
    fn a_position_never_moves_back() {
        let offsets = Offsets::default();
        let epoch = offsets.assign(key(0));
        offsets.finished(&key(0), epoch, 8);
        offsets.finished(&key(0), epoch, 3);
        assert_eq!(offsets.dirty(), [(key(0), 8)]);
        offsets.committed(&[(key(0), 8)]);
        offsets.finished(&key(0), epoch, 5);
        assert!(!offsets.is_dirty());
    }

    #[test]
    fn a_partition_given_up_is_not_committed_any_more() {
        let offsets = Offsets::default();
        let epoch = offsets.assign(key(0));
        offsets.forget(&[key(0)]);
        offsets.finished(&key(0), epoch, 8);
        assert!(!offsets.is_dirty());
        assert_ne!(offsets.assign(key(0)), epoch);
        offsets.finished(&key(0), epoch, 8);
        assert!(!offsets.is_dirty(), "a worker of the earlier assignment speaks for nobody");
    }
}
