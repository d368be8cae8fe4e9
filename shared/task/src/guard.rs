//! Writes that happen only while the task is still the attempt's own.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::{PgConnection, PgPool, PgTransaction};

use crate::store::{self, Held, Store};
use crate::{Status, Stop};

/// The attempt's hold on its task. After a pause of the process longer than the lease another attempt may be running:
/// then nothing of this one is written any more.
#[derive(Debug)]
pub struct Guard {
    held: Held,
    pool: PgPool,
    store: Store,
    ended: AtomicBool,
}

impl Guard {
    pub(crate) fn new(held: Held, pool: PgPool, store: Store) -> Self {
        Self { held, pool, store, ended: AtomicBool::new(false) }
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Begins a transaction on the worker's pool. What it writes is committed only if the task is still held then.
    ///
    /// # Errors
    /// [`Stop::Retry`]: the database.
    pub async fn begin(&self) -> Result<Transaction<'_>, Stop> {
        // In a task of its own: with sqlx 0.9 a `begin` that is dropped half-way poisons its connection.
        let pool = self.pool.clone();
        let begun = tokio::spawn(async move { pool.begin().await }).await;
        Ok(Transaction { guard: self, tx: begun.map_err(|_| sqlx::Error::WorkerCrashed)?? })
    }

    /// Whether an operator has asked a running task to stop. It need not follow: half-way through a payment it should
    /// not. The request stays for later attempts.
    ///
    /// # Errors
    /// [`Stop::Lost`]: the task is no longer held; [`Stop::Retry`]: the database.
    pub async fn cancel_requested(&self) -> Result<bool, Stop> {
        self.store.cancel_requested(self.held).await?.ok_or(Stop::Lost)
    }
}

/// A transaction of an attempt; a connection to run statements on. Dropped, it is rolled back.
#[derive(Debug)]
pub struct Transaction<'g> {
    guard: &'g Guard,
    tx: PgTransaction<'static>,
}

impl Transaction<'_> {
    /// Commits what was written so far, if the task is still held; it goes on running.
    ///
    /// # Errors
    /// [`Stop::Lost`]: it is not, and nothing was written; [`Stop::Retry`]: the database.
    pub async fn commit(mut self) -> Result<(), Stop> {
        // At the end and not at the beginning: the row is locked for a moment only, and heartbeats need it.
        if !store::hold(&mut self.tx, self.guard.held).await? {
            return Err(Stop::Lost);
        }
        Ok(self.tx.commit().await?)
    }

    /// Commits what was written together with the end of the task: it is `done`.
    ///
    /// # Errors
    /// [`Stop::Lost`]: the task is no longer held, and nothing was written; [`Stop::Retry`]: the database.
    pub async fn complete(mut self) -> Result<(), Stop> {
        if !store::finish(&mut *self.tx, self.guard.held, Status::Done, None).await? {
            return Err(Stop::Lost);
        }
        fail::fail_point!("task.before_complete");
        self.tx.commit().await?;
        self.guard.ended.store(true, Ordering::Release);
        Ok(())
    }
}

impl Deref for Transaction<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.tx
    }
}

impl DerefMut for Transaction<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.tx
    }
}
