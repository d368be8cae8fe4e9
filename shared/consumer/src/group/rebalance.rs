//! Taking partitions, giving them up, and closing.

use std::{sync::Arc, time::Duration};

use futures::{StreamExt, future::join_all};
use rdkafka::{TopicPartitionList, consumer::Consumer as _};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{Key, Member, Partition, Rebalance, Route};
use crate::{
    crash::CrashCount,
    engine::{Assignment, Patience, Place},
    status::{PartitionState, Status},
};

/// Longest wait for the last offset commit. What it misses is delivered again and met by the inbox.
const LAST_COMMIT: Duration = Duration::from_secs(3);
/// Longest wait for the client to leave the group; then its thread is left behind.
const LEAVE: Duration = Duration::from_secs(5);

impl Member {
    pub(super) async fn rebalance(&mut self, rebalance: Rebalance) {
        tracing::info!(group = self.group, ?rebalance, "rebalance");
        match rebalance {
            Rebalance::Assigned(list) => {
                self.status.set_joined(&self.label);
                for (topic, partition) in list {
                    self.take(&topic, partition);
                }
            }
            Rebalance::Revoked(list) => self.drain(self.keys(list)),
            Rebalance::Lost(list) => {
                let keys = self.keys(list);
                self.offsets.forget(&keys);
                // Lost while it was draining: there is nothing left to give up.
                self.revoked.retain(|key| !keys.contains(key));
                for partition in self.remove(&keys) {
                    self.status.remove(partition.state());
                    partition.abort().await;
                }
            }
        }
    }

    fn take(&mut self, topic: &str, partition: i32) {
        if !self.topics.contains_key(topic) {
            let find = |route: &Arc<Route>| Some((Arc::clone(route), route.line.kind(topic)?));
            let Some(found) = self.routes.iter().find_map(find) else { return };
            self.topics.insert(topic.into(), found);
        }
        let Some((name, (route, kind))) = self.topics.get_key_value(topic) else { return };
        let key: Key = (Arc::clone(name), partition);
        let state = PartitionState::new(&self.group, topic, partition);
        self.status.add(&state);
        self.engine.runner.metrics.begin(topic, &self.group);
        let epoch = self.offsets.assign(key.clone());
        self.revoked.remove(&key);
        let (offsets, of) = (Arc::clone(&self.offsets), key.clone());
        let (known, asked) = (Arc::clone(&self.offsets), key.clone());
        let place = Place {
            state,
            line: Arc::clone(&route.line),
            kind: *kind,
            stop: CancellationToken::new(),
            advance: Arc::new(move |next| offsets.finished(&of, epoch, next)),
            committed: Arc::new(move || known.acknowledged(&asked, epoch)),
            crash: CrashCount::new(self.group.as_str(), topic, partition),
            aside: false,
        };
        let assignment = Assignment::new(place, Patience::new(self.settings.schema_patience));
        let (engine, lane) = (Arc::clone(&self.engine), Arc::clone(&route.lane));
        let partition = Partition::start(key.clone(), engine, lane, assignment, self.report.clone());
        // A pause of an earlier assignment may have survived in the client.
        partition.resume_now(&self.client);
        self.partitions.insert(key, partition);
    }

    /// Stops the workers; the loop goes on polling and gives the partitions up when their batches have ended.
    fn drain(&mut self, keys: Vec<Key>) {
        let partitions = self.remove(&keys);
        self.revoked.extend(keys.iter().cloned());
        for partition in &partitions {
            partition.resume_paused(&self.client);
        }
        let (client, offsets, status) =
            (Arc::clone(&self.client), Arc::clone(&self.offsets), self.status.clone());
        let deadline = Instant::now() + self.settings.drain_timeout;
        self.draining.push(Box::pin(async move {
            end_all(partitions, &status, deadline).await;
            if timeout(LAST_COMMIT, offsets.release(&keys, &client)).await.is_err() {
                offsets.forget(&keys);
            }
            keys
        }));
    }

    pub(super) fn give_up(&mut self, mut keys: Vec<Key>) {
        keys.retain(|key| self.revoked.remove(key));
        let mut list = TopicPartitionList::with_capacity(keys.len());
        for (topic, partition) in &keys {
            list.add_partition(topic, *partition);
        }
        match self.client.incremental_unassign(&list) {
            Ok(()) => tracing::info!(group = self.group, ?keys, "gave up partitions"),
            Err(error) => tracing::warn!(group = self.group, ?keys, %error, "giving up partitions"),
        }
    }

    /// Ends all batches, commits, leaves the group.
    pub(super) async fn close(mut self) {
        // A rebalance that asks for partitions now must be answered, or the client's drop would wait for ever.
        while let Ok(rebalance) = self.rebalances.try_recv() {
            if let Rebalance::Revoked(list) = rebalance {
                let keys = self.keys(list);
                self.drain(keys);
            }
        }
        self.stop_draining.cancel();
        let deadline = Instant::now() + self.settings.drain_timeout;
        let partitions = self.partitions.drain().map(|(_, partition)| partition).collect();
        end_all(partitions, &self.status, deadline).await;
        // They keep the same time themselves, and then take back what they had begun.
        if timeout_at(deadline + LAST_COMMIT, join_all(self.drainers.iter_mut())).await.is_err() {
            tracing::warn!(group = self.group, "the drainer of the park did not end in time");
        }
        while let Some(keys) = self.draining.next().await {
            self.give_up(keys);
        }
        if timeout(LAST_COMMIT, self.offsets.commit(&self.client)).await.is_err() {
            tracing::warn!(group = self.group, "last offset commit did not end in time");
        }
        let (client, group) = (Arc::clone(&self.client), self.group.clone());
        drop(self);
        // Dropping blocks until the group is left, and runs callbacks.
        let left = tokio::task::spawn_blocking(move || drop(client));
        match timeout(LEAVE, left).await {
            Ok(_) => tracing::info!(group, "consumer stopped"),
            Err(_) => tracing::warn!(group, "the Kafka client did not close in time"),
        }
    }

    fn remove(&mut self, keys: &[Key]) -> Vec<Partition> {
        keys.iter().filter_map(|key| self.partitions.remove(key)).collect()
    }

    fn keys(&self, list: Vec<(String, i32)>) -> Vec<Key> {
        list.into_iter().map(|(topic, partition)| (topic.into(), partition)).collect()
    }
}

/// Also when the loop was cancelled: the client's own drop must not wait for an answer that nobody gives.
impl Drop for Member {
    fn drop(&mut self) {
        self.status.set_left(&self.label);
        self.client.context().close();
        while let Ok(rebalance) = self.rebalances.try_recv() {
            if let Rebalance::Revoked(list) = rebalance {
                let keys = self.keys(list);
                self.revoked.extend(keys);
            }
        }
        if !self.revoked.is_empty() {
            self.give_up(self.revoked.iter().cloned().collect());
        }
        for partition in self.partitions.values() {
            partition.stop();
            self.status.remove(partition.state());
        }
    }
}

async fn end_all(partitions: Vec<Partition>, status: &Status, deadline: Instant) {
    join_all(partitions.into_iter().map(|partition| async move {
        let state = Arc::clone(partition.state());
        partition.end(deadline).await;
        status.remove(&state);
    }))
    .await;
}
