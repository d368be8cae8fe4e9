//! A message on its way into the park, without its event's type.

use std::sync::Arc;

use waybill_event::MessageId;

use crate::{Message, record::Record};

/// What is parked: a record's key, or a single message that has none.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    /// A null key is no key: such a message is parked under its own id and ordered with nothing.
    pub(crate) keyless: bool,
    pub(crate) bytes: Vec<u8>,
}

impl Key {
    pub(crate) fn of<E>(message: &Message<E>) -> Self {
        match message.key() {
            Some(key) => Self { keyless: false, bytes: key.to_vec() },
            None => Self { keyless: true, bytes: message.id.as_uuid().as_bytes().to_vec() },
        }
    }
}

/// Never shows its content.
impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} of {} bytes", if self.keyless { "no key" } else { "key" }, self.bytes.len())
    }
}

/// A message to be parked. Made of decoded ones only: a record whose headers the client library cannot read does not
/// decode, so it goes to the dead letters at once and never into the park, which could not keep its headers.
#[derive(Debug, Clone)]
pub(crate) struct Parcel {
    pub(crate) id: MessageId,
    pub(crate) key: Key,
    pub(crate) record: Arc<Record>,
}

impl Parcel {
    pub(crate) fn of<E>(message: &Message<E>) -> Self {
        Self { id: message.id, key: Key::of(message), record: Arc::clone(message.record()) }
    }
}
