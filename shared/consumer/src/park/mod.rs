//! Parking: order per key while one of the key's messages is being retried.
//!
//! A message that fails is *parked* with its key, in the transaction that handled its batch, and so is every later
//! message of that key, until the last of them is handled. Whether a key is parked is asked in each transaction, in a
//! statement of its own behind the claim: whoever claims a message has waited for every other transaction that had
//! claimed it, so the statement sees what became of it there. Any instance drains, whoever owns the partition: the
//! head of a key, its inbox row and its effect in one transaction.
//!
//! **Promises.** Of one key and partition no effect comes before that of an earlier message which is still to come.
//! No message is lost, and none takes effect twice, over crashes, zombies and redeliveries. Keys wait for nothing but
//! themselves. A replay goes before the messages that wait, and has one attempt.
//!
//! **Does not promise.** Order between two partitions, should a producer write one key to both. A dead letter or the
//! outcome of a replay may be published more than once, always under the same ids. A message without a key is
//! parked alone and ordered with nothing.

mod drain;
mod headers;
mod operate;
mod parcel;
mod parks;
mod replay;
mod settings;
mod store;
#[cfg(test)]
mod tests;

pub(crate) use drain::{Begun, Drainer, Outlet, Outside, Told};
pub(crate) use operate::Room;
pub use operate::{ParkedGauge, ParkedKey};
pub(crate) use operate::{gauge, list, release};
#[cfg(test)]
pub(crate) use parcel::{Key, Parcel};
pub(crate) use parks::{Opening, Parks, park_failed};
pub(crate) use replay::park_replay;
pub use settings::ParkSettings;
