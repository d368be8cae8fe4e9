//! The records of a batch on their way: decoded as far as possible, finished from the front.

use std::sync::Arc;

use chrono::Utc;
use waybill_event::Event;

use super::Patience;
use crate::{
    Message,
    batch::{DECODE, Fallen},
    line::Kind,
    record::{Record, Undecodable},
};

pub(super) struct Pending<E> {
    /// Decoded and not finished.
    pub(super) messages: Vec<Message<E>>,
    /// Undecodable ones and messages that leave, not yet published.
    pub(super) fallen: Vec<Fallen>,
    /// Those of them that the breaker holds.
    held: Vec<Fallen>,
    /// Offsets of what was handled and is not told yet.
    pub(super) done: Vec<i64>,
    /// From the first record with an unknown schema on.
    tail: Vec<Arc<Record>>,
    /// Everything before it is finished.
    reached: i64,
    end: i64,
    kind: Kind,
}

impl<E: Event> Pending<E> {
    pub(super) fn new(records: Vec<Record>, kind: Kind, patience: &mut Patience) -> Self {
        let reached = records.first().map_or(0, |record| record.offset);
        let end = records.last().map_or(reached, |record| record.offset + 1);
        let tail = records.into_iter().map(Arc::new).collect();
        let mut pending = Self {
            messages: Vec::new(),
            fallen: Vec::new(),
            held: Vec::new(),
            done: Vec::new(),
            tail,
            reached,
            end,
            kind,
        };
        pending.decode(patience);
        pending
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.fallen.is_empty() && self.held.is_empty() && self.tail.is_empty()
    }

    /// Decodes the tail up to the next record whose schema is unknown and worth waiting for. Returns its error when
    /// that is the very front.
    pub(super) fn decode(&mut self, patience: &mut Patience) -> Option<String> {
        let (mut decoded, mut stopped) = (0, None);
        for record in &self.tail {
            match record.decode::<E>() {
                Ok(message) => self.messages.push(message.after(record.hop(self.kind))),
                Err(error) if error.unknown_schema && !patience.is_over(&error.text) => {
                    stopped = Some(error.text);
                    break;
                }
                Err(error) => self.fallen.push(Fallen::undecodable(record, error, self.kind)),
            }
            decoded += 1;
        }
        self.tail.drain(..decoded);
        stopped.filter(|_| decoded == 0)
    }

    /// The fallen before the first message that is still to be handled: nothing behind that one is dealt with first,
    /// not even as a dead letter.
    pub(super) fn take_fallen(&mut self) -> Vec<Fallen> {
        let next = self.next();
        let fallen = std::mem::take(&mut self.fallen).into_iter();
        let (mut before, behind): (Vec<_>, Vec<_>) = fallen.partition(|fallen| fallen.record.offset < next);
        self.fallen = behind;
        before.sort_by_key(|fallen| fallen.record.offset);
        before
    }

    /// The next offset to be read, when it has moved since it was last asked for. The fallen before it must be published.
    pub(super) fn advanced(&mut self) -> Option<i64> {
        let next = self.next();
        let moved = next > self.reached;
        self.reached = next;
        moved.then_some(next)
    }

    /// The first message left has ended the process too often to be begun again.
    pub(super) fn crashed(&mut self) {
        if !self.messages.is_empty() {
            let message = self.messages.remove(0);
            self.fallen.push(Fallen::crashed(&message));
        }
    }

    /// Takes back what must not leave before the line runs again.
    pub(super) fn put_back(&mut self, held: Vec<Fallen>) {
        for fallen in held {
            match fallen.record.decode::<E>() {
                Ok(message) => {
                    self.messages.push(message.after(fallen.record.hop(self.kind)));
                }
                Err(_) => self.held.push(fallen),
            }
        }
        self.messages.sort_by_key(Message::offset);
    }

    /// The line runs again: what cannot be decoded may leave after all.
    pub(super) fn let_go(&mut self) {
        self.fallen.append(&mut self.held);
    }

    /// The first offset that is not finished.
    pub(super) const fn reached(&self) -> i64 {
        self.reached
    }

    /// Behind the last record.
    pub(super) const fn end(&self) -> i64 {
        self.end
    }

    /// Record timestamp of the oldest record that is not finished.
    pub(super) fn oldest(&self) -> Option<i64> {
        let fallen = self.fallen.iter().map(|fallen| &fallen.record);
        let front = fallen.chain(self.messages.first().map(Message::record)).chain(self.tail.first());
        front.min_by_key(|record| record.offset)?.timestamp_ms
    }

    fn next(&self) -> i64 {
        let message = self.messages.first().map(Message::offset);
        let tail = self.tail.first().map(|record| record.offset);
        let held = self.held.iter().map(|fallen| fallen.record.offset).min();
        message.or(tail).into_iter().chain(held).min().unwrap_or(self.end)
    }
}

impl Fallen {
    pub(super) fn undecodable(record: &Arc<Record>, error: Undecodable, kind: Kind) -> Self {
        Self {
            record: Arc::clone(record),
            id: record.id(),
            attempt: record.hop(kind).attempts.saturating_add(1),
            code: error.code.to_owned(),
            class: DECODE,
            text: error.text,
            failed_at: Utc::now(),
            traceparent: None,
            again: None,
        }
    }
}
