//! The callbacks of the client. They run on the thread that polls, so they copy, signal and return.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use rdkafka::{
    ClientContext, Statistics, TopicPartitionList,
    consumer::{BaseConsumer, Consumer as _, ConsumerContext},
    error::KafkaError,
    types::RDKafkaRespErr,
};
use tokio::sync::{mpsc, watch};

/// A rebalance that the loop has to follow; lists may be empty.
#[derive(Debug)]
pub(super) enum Rebalance {
    /// Already assigned in the client.
    Assigned(Vec<(String, i32)>),
    /// To be given up by the loop when their batches have ended.
    Revoked(Vec<(String, i32)>),
    /// Already given up: the group has counted this member out, or the consumer is closing.
    Lost(Vec<(String, i32)>),
}

pub(super) struct Context {
    group: String,
    rebalances: mpsc::UnboundedSender<Rebalance>,
    statistics: watch::Sender<Option<Statistics>>,
    closing: Arc<AtomicBool>,
    /// What the client said with its last error.
    reason: Mutex<String>,
}

impl Context {
    pub(super) fn new(
        group: String,
        rebalances: mpsc::UnboundedSender<Rebalance>,
        statistics: watch::Sender<Option<Statistics>>,
    ) -> Self {
        Self { group, rebalances, statistics, closing: Arc::default(), reason: Mutex::default() }
    }

    /// The words of the error that the stream has just given, which has only a code.
    pub(super) fn take_reason(&self) -> String {
        std::mem::take(&mut self.reason.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// From now on partitions are given up inside the callback: the client's drop polls until it is closed, and
    /// nobody is left to give them up later.
    pub(super) fn close(&self) {
        self.closing.store(true, Ordering::SeqCst);
    }
}

impl ClientContext for Context {
    /// Called just before the stream gives the same error, where it is judged and logged.
    fn error(&self, _: KafkaError, reason: &str) {
        reason.clone_into(&mut self.reason.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn stats(&self, statistics: Statistics) {
        self.statistics.send_replace(Some(statistics));
    }
}

impl ConsumerContext for Context {
    fn rebalance(&self, consumer: &BaseConsumer<Self>, event: RDKafkaRespErr, list: &mut TopicPartitionList) {
        let keys: Vec<_> =
            list.elements().iter().map(|entry| (entry.topic().to_owned(), entry.partition())).collect();
        // Both group protocols are cooperative here, so always the incremental calls.
        let (answer, rebalance) = match event {
            RDKafkaRespErr::RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS => {
                (consumer.incremental_assign(list), Rebalance::Assigned(keys))
            }
            _ if keys.is_empty() || self.closing.load(Ordering::SeqCst) || consumer.assignment_lost() => {
                (consumer.incremental_unassign(list), Rebalance::Lost(keys))
            }
            _ => (Ok(()), Rebalance::Revoked(keys)),
        };
        if let Err(error) = answer {
            tracing::error!(group = self.group, %error, ?rebalance, "rebalance was refused");
        }
        // The loop is gone only while closing, when nothing is left to do.
        let _ = self.rebalances.send(rebalance);
    }
}
