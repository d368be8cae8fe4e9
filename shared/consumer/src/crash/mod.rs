//! The crash count: finds the message that ends the process, and has it dead-lettered.
//!
//! A count in memory would never get there, because each crash forgets it. So the first batch of an assignment is
//! stored as a start, and forgotten at the first offset commit or a clean end. After [`STARTS`] starts at one offset the
//! partition is *suspect*: its messages are handled one at a time, alone in the process, and each is stored before its
//! handler begins. A message that was begun three times and never ended is not begun again: it goes to the
//! dead-letter topic with class and code `crash`.
//!
//! **Promises.** A message that always ends the process is dead-lettered after it ended two starts at one offset that
//! did not know better and three that did, wherever it lies in its batch; a start that got further before it ended is
//! none of them. A message beside it is at most delayed, and one whose
//! effect is committed is never taken for one that crashed. Normal work pays one statement at the first batch of an
//! assignment and one at its first commit; no batch pays.
//!
//! **Does not promise.** A process that is killed from outside three times while it happens to handle the same suspect
//! message dead-letters it: nothing tells that from a crash. Handlers of other processes on the machine are not held
//! off.
//!
//! All statements are the runtime's own: each may be repeated until it succeeds, and counts once. The rows are few by
//! design, one per partition and, while crashes are looked for, one per crash; [`purge`] removes those of partitions
//! and messages that never came back.

mod gate;
mod store;

use std::sync::{Arc, Mutex, PoisonError};

use sqlx::{PgPool, postgres::types::PgInterval};
use uuid::Uuid;

pub use gate::{Entry, Gate};

/// Starts at one offset that make a partition suspect: the first two may be bad luck.
pub const STARTS: i32 = 3;
/// Times that a message was begun and not ended, after which it is dead-lettered.
pub const CRASHES: i32 = 3;
/// Class and code of a message that ended the process each time.
pub const CRASH: &str = "crash";

/// How the messages of a partition are handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Batch by batch, beside others.
    Normal,
    /// One at a time, alone in the process, each between [`before`](CrashCount::before) and
    /// [`after`](CrashCount::after).
    Suspect,
}

/// What to do with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Handle it, or let the inbox skip it.
    Handle,
    /// Dead-letter it as [`CRASH`].
    Crash,
}

/// Names of group and topic with prefix, as in the inbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    group: String,
    topic: String,
    partition: i32,
}

/// The count of one assignment; clones are the same one.
#[derive(Debug, Clone)]
pub struct CrashCount(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    place: Place,
    /// Tells this assignment's rows from those of another one.
    assignment: Uuid,
    state: Mutex<State>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    watch: Watch,
    /// The message between `before` and `after`.
    begun: Option<Uuid>,
}

#[derive(Debug, Clone, Copy, Default)]
enum Watch {
    /// Nothing was read yet.
    #[default]
    Fresh,
    /// The row is there, until an offset behind this one is committed.
    Armed { mode: Mode, until: i64 },
    /// The row is gone.
    Settled,
}

impl CrashCount {
    /// For one assignment of one partition. Group and topic with the installation's prefix.
    pub fn new(group: impl Into<String>, topic: impl Into<String>, partition: i32) -> Self {
        let place = Place { group: group.into(), topic: topic.into(), partition };
        Self(Arc::new(Inner { place, assignment: Uuid::new_v4(), state: Mutex::default() }))
    }

    /// Before the first batch of the assignment, with its first offset and the one behind its last. Later calls only
    /// return the mode.
    ///
    /// # Errors
    /// The database failed; call it again.
    pub async fn begin(&self, pool: &PgPool, first: i64, end: i64) -> Result<Mode, sqlx::Error> {
        if !matches!(self.state().watch, Watch::Fresh) {
            return Ok(self.mode());
        }
        let start = store::begin(pool, &self.0.place, self.0.assignment, first, end).await?;
        let (mode, until) = if start.starts < STARTS {
            // The first commit is behind the first offset.
            (Mode::Normal, first + 1)
        } else {
            (Mode::Suspect, start.until_offset)
        };
        if mode == Mode::Suspect {
            tracing::error!(
                group = self.0.place.group,
                topic = self.0.place.topic,
                partition = self.0.place.partition,
                first,
                until,
                starts = start.starts,
                "partition is suspect: its messages are handled one at a time"
            );
        }
        self.change(|state| state.watch = Watch::Armed { mode, until });
        Ok(mode)
    }

    /// How the next message is to be handled.
    #[must_use]
    pub fn mode(&self) -> Mode {
        match self.state().watch {
            Watch::Armed { mode, .. } => mode,
            Watch::Fresh | Watch::Settled => Mode::Normal,
        }
    }

    /// With the offset that the broker has **acknowledged** as committed, before every batch: one that is finished but
    /// not committed would be read again after a crash, and its start must still count. Returns the mode from now on:
    /// a suspect partition is until its range is behind it. Makes a statement once per assignment.
    ///
    /// # Errors
    /// The database failed; the mode has not changed, call it again.
    pub async fn progressed(&self, pool: &PgPool, committed: i64) -> Result<Mode, sqlx::Error> {
        match self.state().watch {
            Watch::Armed { until, .. } if committed >= until => {
                store::end(pool, &self.0.place, self.0.assignment).await?;
                self.change(|state| state.watch = Watch::Settled);
            }
            _ => {}
        }
        Ok(self.mode())
    }

    /// The partition was given up, or the consumer stops, and the process lives: also when its batch did not end in
    /// time and was rolled back. Nothing of this assignment was a crash. No statement when there is nothing to take
    /// back.
    ///
    /// # Errors
    /// The database failed; call it again, or leave it: then this start counts as a crash.
    pub async fn clean_end(&self, pool: &PgPool) -> Result<(), sqlx::Error> {
        let State { watch, begun } = self.state();
        if let Some(id) = begun {
            store::taken_back(pool, &self.0.place.group, id, self.0.assignment).await?;
            self.change(|state| state.begun = None);
        }
        if let Watch::Armed { .. } = watch {
            store::end(pool, &self.0.place, self.0.assignment).await?;
            self.change(|state| state.watch = Watch::Settled);
        }
        Ok(())
    }

    /// Before the transaction of a message in a suspect partition, alone in the [`Gate`]; committed when it returns.
    /// `replay` is the message's `waybill-replay-id`.
    ///
    /// # Errors
    /// The database failed; do not handle the message, call it again.
    pub async fn before(
        &self,
        pool: &PgPool,
        id: Uuid,
        replay: Option<Uuid>,
    ) -> Result<Verdict, sqlx::Error> {
        // Set first: cancelled in the statement, it may be stored, and the clean end must take it back.
        self.change(|state| state.begun = Some(id));
        let begun = store::before(pool, &self.0.place.group, id, replay, self.0.assignment).await?;
        Ok(if begun.is_some_and(|begun| begun > CRASHES) { Verdict::Crash } else { Verdict::Handle })
    }

    /// The message has ended: handled, failed in whatever ordinary way, or its dead letter is marked `dead`. Before
    /// its offset moves.
    ///
    /// # Errors
    /// The database failed; call it again.
    pub async fn after(&self, pool: &PgPool, id: Uuid) -> Result<(), sqlx::Error> {
        store::after(pool, &self.0.place.group, id).await?;
        // Another one may have been begun since: the clean end must still take that one back.
        self.change(|state| state.begun = state.begun.filter(|begun| *begun != id));
        Ok(())
    }

    /// Whether a handler has begun this message before and never ended. For a parked message, which has no offset to be
    /// suspect by: one that is, is handled alone; each one between [`before`](Self::before) and
    /// [`after`](Self::after).
    ///
    /// # Errors
    /// The database failed; call it again.
    pub async fn suspects(&self, pool: &PgPool, id: Uuid) -> Result<Mode, sqlx::Error> {
        let suspect = store::is_suspect(pool, &self.0.place.group, id).await?;
        Ok(if suspect { Mode::Suspect } else { Mode::Normal })
    }

    fn state(&self) -> State {
        *self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.state.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Deletes what no process has touched for `untouched`, at most `most` rows of each table; returns how many.
///
/// # Errors
/// The database failed; nothing of this step is deleted.
pub async fn purge(pool: &PgPool, untouched: PgInterval, most: i64) -> Result<u64, sqlx::Error> {
    store::purge(pool, untouched, most).await
}
