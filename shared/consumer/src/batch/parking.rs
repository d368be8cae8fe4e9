//! The messages of a transaction, those of parked keys set aside.

use std::{collections::BTreeMap, ops::Range};

use sqlx::PgConnection;

use super::verdict::Fate;
use crate::{Message, park::Parks};

/// The messages to be handled. What was set aside comes back to the list unless the transaction commits.
pub(super) struct Parking<'l, E> {
    parks: Option<Parks<'l>>,
    pub(super) messages: &'l mut Vec<Message<E>>,
    /// Of keys that were parked before: they are behind what is parked there, and not handled here.
    diverted: Vec<Message<E>>,
}

impl<'l, E> Parking<'l, E> {
    pub(super) fn new(mut parks: Option<Parks<'l>>, messages: &'l mut Vec<Message<E>>) -> Self {
        let mut diverted = Vec::new();
        if let Some(parks) = &mut parks {
            diverted = messages.extract_if(.., |message| parks.holds(message)).collect();
            diverted.iter().for_each(|message| parks.divert(message));
        }
        Self { parks, messages, diverted }
    }

    /// Whether a failure of the whole is one message's, and undoes nothing else.
    pub(super) fn is_alone(&self) -> bool {
        self.messages.len() == 1 && self.diverted.is_empty()
    }

    /// Whether a message is not to be run: it has failed, or an earlier one of its key has and waits.
    pub(super) fn waits(&self, index: usize, failed: &BTreeMap<usize, Fate>) -> bool {
        let Some(parks) = &self.parks else { return failed.contains_key(&index) };
        let message = &self.messages[index];
        let behind = |(at, fate): (&usize, &Fate)| {
            matches!(fate, Fate::Parks(_))
                && message.key().is_some()
                && self.messages[*at].key() == message.key()
        };
        failed.contains_key(&index) || parks.holds(message) || failed.range(..index).any(behind)
    }

    /// Notes down what is to be parked among these fates, in the order of the messages.
    pub(super) fn park(&mut self, fates: &mut [Fate], range: Range<usize>) {
        let Some(parks) = &mut self.parks else { return };
        for index in range {
            let message = &self.messages[index];
            match std::mem::replace(&mut fates[index], Fate::Parked) {
                // Behind one that has just parked its key.
                _ if parks.holds(message) => parks.divert(message),
                Fate::Parks(opening) => parks.open(message, opening),
                fate => fates[index] = fate,
            }
        }
    }

    pub(super) async fn write(&mut self, tx: &mut PgConnection) -> Result<(), sqlx::Error> {
        match &mut self.parks {
            Some(parks) if !parks.is_idle() => parks.write(tx).await.map(drop),
            _ => Ok(()),
        }
    }

    /// What was set aside is parked.
    pub(super) fn committed(mut self) {
        self.diverted.clear();
    }
}

impl<E> Drop for Parking<'_, E> {
    fn drop(&mut self) {
        if !self.diverted.is_empty() {
            self.messages.append(&mut self.diverted);
            self.messages.sort_by_key(Message::offset);
        }
    }
}
