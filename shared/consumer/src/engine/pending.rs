//! The records of a batch on their way: decoded as far as possible, finished from the front.

use std::sync::Arc;

use chrono::Utc;
use waybill_event::Event;

use super::Patience;
use crate::{
    Message,
    batch::{DECODE, Dead},
    record::{Record, Undecodable},
};

pub(super) struct Pending<E> {
    /// Decoded and not finished.
    pub(super) messages: Vec<Message<E>>,
    /// Undecodable ones and messages that failed for good, not yet published.
    pub(super) dead: Vec<Dead>,
    /// From the first record with an unknown schema on.
    tail: Vec<Arc<Record>>,
    /// Everything before it is finished.
    reached: i64,
    end: i64,
}

impl<E: Event> Pending<E> {
    pub(super) fn new(records: Vec<Record>, patience: &mut Patience) -> Self {
        let reached = records.first().map_or(0, |record| record.offset);
        let end = records.last().map_or(reached, |record| record.offset + 1);
        let tail = records.into_iter().map(Arc::new).collect();
        let mut pending = Self { messages: Vec::new(), dead: Vec::new(), tail, reached, end };
        pending.decode(patience);
        pending
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty() && self.dead.is_empty() && self.tail.is_empty()
    }

    /// Decodes the tail up to the next record whose schema is unknown and worth waiting for. Returns its error when
    /// that is the very front.
    pub(super) fn decode(&mut self, patience: &mut Patience) -> Option<String> {
        let (mut decoded, mut stopped) = (0, None);
        for record in &self.tail {
            match record.decode::<E>() {
                Ok(message) => self.messages.push(message),
                Err(error) if error.unknown_schema && !patience.is_over(&error.text) => {
                    stopped = Some(error.text);
                    break;
                }
                Err(error) => self.dead.push(Dead::undecodable(record, error)),
            }
            decoded += 1;
        }
        self.tail.drain(..decoded);
        stopped.filter(|_| decoded == 0)
    }

    /// The dead before the first message that is still to be handled: nothing behind that one is dealt with first,
    /// not even as a dead letter.
    pub(super) fn take_dead(&mut self) -> Vec<Dead> {
        let next = self.next();
        let dead = std::mem::take(&mut self.dead).into_iter();
        let (mut before, behind): (Vec<_>, Vec<_>) = dead.partition(|dead| dead.record.offset < next);
        self.dead = behind;
        before.sort_by_key(|dead| dead.record.offset);
        before
    }

    /// The next offset to be read, when it has moved since it was last asked for. The dead before it must be buried.
    pub(super) fn advanced(&mut self) -> Option<i64> {
        let next = self.next();
        let moved = next > self.reached;
        self.reached = next;
        moved.then_some(next)
    }

    /// Behind the last record.
    pub(super) const fn end(&self) -> i64 {
        self.end
    }

    /// Record timestamp of the oldest record that is not finished.
    pub(super) fn oldest(&self) -> Option<i64> {
        let dead = self.dead.iter().map(|dead| &dead.record);
        let front = dead.chain(self.messages.first().map(Message::record)).chain(self.tail.first());
        front.min_by_key(|record| record.offset)?.timestamp_ms
    }

    fn next(&self) -> i64 {
        let message = self.messages.first().map(Message::offset);
        let tail = self.tail.first().map(|record| record.offset);
        message.or(tail).unwrap_or(self.end)
    }
}

impl Dead {
    fn undecodable(record: &Arc<Record>, error: Undecodable) -> Self {
        Self {
            record: Arc::clone(record),
            id: record.id(),
            attempt: 1,
            code: error.code.to_owned(),
            class: DECODE,
            text: error.text,
            failed_at: Utc::now(),
            traceparent: None,
        }
    }
}
