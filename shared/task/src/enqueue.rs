//! The way in, and the short cut to the worker.

use std::sync::{Arc, Mutex, PoisonError};

use sqlx::PgConnection;
use tokio::sync::mpsc;

use crate::{New, TaskId, metrics, store};

/// Ids that may wait for an immediate try. What does not fit is left to the poller.
pub const HAND_OFF: usize = 1_024;

/// The end at which tasks are enqueued. Cheap to clone.
///
/// Give it to [`Builder::hand_off`](crate::Builder::hand_off) in the process that also runs the tasks; without that, the
/// tasks are found by the pollers of those who do.
#[derive(Debug, Clone)]
pub struct Tasks {
    sender: mpsc::Sender<TaskId>,
    receiver: Arc<Mutex<Option<mpsc::Receiver<TaskId>>>>,
}

impl Tasks {
    /// An end that no worker listens to yet.
    #[must_use]
    pub fn new() -> Self {
        let (sender, receiver) = mpsc::channel(HAND_OFF);
        Self { sender, receiver: Arc::new(Mutex::new(Some(receiver))) }
    }

    /// Enqueues a task inside the caller's transaction.
    ///
    /// Rule: for tasks with a key, hold something of the key first (the aggregate's row, the message's partition). Then
    /// the order of enqueueing is the order of running.
    ///
    /// # Errors
    /// What the database answers; the transaction is aborted then.
    pub async fn enqueue(&self, tx: &mut PgConnection, new: &New) -> Result<TaskId, sqlx::Error> {
        Ok(self.enqueue_all(tx, std::slice::from_ref(new)).await?[0])
    }

    /// Enqueues several tasks in one statement. Those of one key keep the order given.
    ///
    /// # Errors
    /// What the database answers; the transaction is aborted then.
    pub async fn enqueue_all(&self, tx: &mut PgConnection, new: &[New]) -> Result<Vec<TaskId>, sqlx::Error> {
        let ids: Vec<TaskId> = new.iter().map(|_| TaskId::new()).collect();
        if !new.is_empty() {
            store::enqueue(tx, &ids, new).await?;
        }
        Ok(ids)
    }

    /// Asks for an immediate try; call it after the commit. Returns at once and never fails: when the channel is full or
    /// nobody listens, the poller takes the task.
    pub fn hand_off(&self, id: TaskId) {
        if let Err(mpsc::error::TrySendError::Full(_)) = self.sender.try_send(id) {
            metrics::hand_off_full();
        }
    }

    pub(crate) fn take(&self) -> Option<mpsc::Receiver<TaskId>> {
        self.receiver.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}
