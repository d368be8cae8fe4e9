//! The worker's side of a partition: due times and batches.

use std::sync::{Arc, atomic::Ordering};

use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until, timeout_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    Key,
    partition::{Arrived, LULL, Report, over},
};
use crate::{line::Kind, metrics::Metrics, record::Record, settings::Settings, status::PartitionState};

/// The worker's side.
pub(super) struct Intake {
    pub(super) key: Key,
    pub(super) kind: Kind,
    pub(super) state: Arc<PartitionState>,
    pub(super) settings: Arc<Settings>,
    pub(super) records: mpsc::UnboundedReceiver<Arrived>,
    /// Taken from the channel and not due yet.
    pub(super) ahead: Option<Arrived>,
    pub(super) report: mpsc::UnboundedSender<Report>,
    pub(super) stop: CancellationToken,
    pub(super) metrics: Metrics,
}

impl Intake {
    /// The next batch: closed at its size, at the first record that is not due, or a few milliseconds after its first
    /// record while more is arriving. `None` when the partition was stopped.
    ///
    /// Waiting for a due time happens here and not in the client: the loop goes on polling, the partition is paused
    /// only when its buffer is full, and nothing has to be resumed after a rebalance.
    pub(super) async fn batch(&mut self) -> Option<Vec<Record>> {
        let stop = self.stop.clone();
        let (first, due) = stop.run_until_cancelled(self.next()).await??;
        if let Some(due) = due {
            stop.run_until_cancelled(sleep_until(due)).await?;
            self.metrics.late(due.elapsed().as_secs_f64(), &self.state.topic, &self.state.group);
        }
        self.collect(first).await
    }

    async fn collect(&mut self, first: Record) -> Option<Vec<Record>> {
        let deadline = Instant::now() + self.settings.batch_wait;
        let (mut bytes, mut batch) = (0, Vec::new());
        let mut next = Some(first);
        while let Some(record) = next.take() {
            bytes += record.size();
            batch.push(record);
            if batch.len() >= self.settings.batch_size || bytes >= self.settings.buffer_bytes {
                break;
            }
            let arrived = match self.records.try_recv() {
                Ok(arrived) => Some(arrived),
                Err(_) => {
                    let lull = deadline.min(Instant::now() + LULL);
                    timeout_at(lull, self.records.recv()).await.ok().flatten()
                }
            };
            match arrived {
                Some((record, due)) if due.is_none_or(|due| due <= Instant::now()) => next = Some(record),
                // Nothing behind it is taken first, though it may be due earlier: offsets move in order.
                early => self.ahead = early,
            }
        }
        self.state.buffer.records.fetch_sub(batch.len(), Ordering::SeqCst);
        self.state.buffer.bytes.fetch_sub(bytes, Ordering::SeqCst);
        if self.state.paused.load(Ordering::SeqCst) && !over(&self.state.buffer, &self.settings, self.kind, 2)
        {
            let _ = self.report.send(Report::Drained(self.key.clone()));
        }
        Some(batch)
    }

    async fn next(&mut self) -> Option<Arrived> {
        match self.ahead.take() {
            Some(ahead) => Some(ahead),
            None => self.records.recv().await,
        }
    }
}
