//! When to claim, and what: polls, immediate tries and the next tasks of keys take turns.

use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use crate::TaskId;
use crate::backoff::about;
use crate::store::Cursor;

/// Most ids that one claim names.
const NAMED: usize = 100;

/// A reason to claim.
#[derive(Debug)]
pub(super) enum Wake {
    /// Whatever is due.
    Poll,
    /// These tasks, and the first ones of these keys.
    Named { ids: Vec<TaskId>, keys: Vec<String> },
}

#[derive(Debug)]
pub(super) struct Intake {
    hand_off: Option<mpsc::Receiver<TaskId>>,
    /// Keys whose task has just ended: the next one need not wait for a poll.
    keys: Vec<String>,
    poll: Duration,
    next_poll: Instant,
    cursor: Cursor,
    /// The last turn was a poll; with a backlog the next one is due at once, and must not starve the hand-off.
    polled: bool,
    healthy: bool,
}

impl Intake {
    pub(super) fn new(hand_off: Option<mpsc::Receiver<TaskId>>, poll: Duration) -> Self {
        // Not at once: instances that start together would look together.
        let next_poll = Instant::now() + poll.mul_f64(rand::random_range(0.0..=0.2));
        Self { hand_off, keys: Vec::new(), poll, next_poll, cursor: None, polled: false, healthy: true }
    }

    pub(super) fn next_of_key(&mut self, key: Option<String>) {
        self.keys.extend(key);
    }

    /// The next reason. Safe to cancel.
    pub(super) async fn next(&mut self, free: usize) -> Wake {
        let named = !self.keys.is_empty() || self.hand_off.as_ref().is_some_and(|ids| !ids.is_empty());
        if self.next_poll <= Instant::now() && !(self.polled && named) {
            self.polled = true;
            return Wake::Poll;
        }
        self.polled = false;
        let most = free.min(NAMED);
        let mut ids = Vec::new();
        if named {
            let keys: Vec<String> = self.keys.drain(..self.keys.len().min(most)).collect();
            // No more than can be taken: what is named in vain waits for a poll.
            let most = most - keys.len();
            if let Some(hand_off) = &mut self.hand_off {
                while ids.len() < most
                    && let Ok(id) = hand_off.try_recv()
                {
                    ids.push(id);
                }
            }
            return Wake::Named { ids, keys };
        }
        tokio::select! {
            () = sleep_until(self.next_poll) => {
                self.polled = true;
                Wake::Poll
            }
            () = receive(&mut self.hand_off, &mut ids, most) => Wake::Named { ids, keys: Vec::new() },
        }
    }

    /// A claim was taken.
    pub(super) fn succeeded(&mut self) {
        self.healthy = true;
    }

    /// A poll has not seen all that is due: the next one goes on at once.
    pub(super) fn poll_on(&mut self, cursor: Cursor) {
        self.cursor = cursor;
        self.next_poll = Instant::now();
    }

    /// A poll has seen all that is due: the next one begins from the front.
    pub(super) fn poll_later(&mut self) {
        self.cursor = None;
        self.next_poll = Instant::now() + about(self.poll);
    }

    /// Where the next poll begins.
    pub(super) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// What was named is left to the next poll.
    pub(super) fn failed(&mut self, error: &sqlx::Error) {
        self.poll_later();
        if std::mem::take(&mut self.healthy) {
            tracing::warn!(%error, "tasks cannot be claimed; trying on");
        }
    }
}

/// Waits for ids; for ever when nobody can send any more.
async fn receive(hand_off: &mut Option<mpsc::Receiver<TaskId>>, ids: &mut Vec<TaskId>, most: usize) {
    if let Some(receiver) = hand_off {
        if receiver.recv_many(ids, most).await > 0 {
            return;
        }
        *hand_off = None;
    }
    std::future::pending().await
}
