//! One source: the outbox of one database, on its way to Kafka.

mod cursor;
mod failure;
mod floor;
mod intake;
mod lease;
#[cfg(test)]
mod lease_model;
mod listen;
mod mark;
mod order;
mod pause;
pub(crate) mod producer;
mod pump;
mod readiness;
mod record;
mod row;
pub mod store;
mod window;

pub use pump::{Error, Pump, Setup};
pub use readiness::Readiness;
