//! Replays: a plan carried out, one run at a time over any number of console processes.
//!
//! A run belongs to the process that holds its lease. What it has done is in the database before and after each record,
//! so another process takes it over where it stood; what the dead process may or may not have sent is looked up on the
//! replay topic.

mod error;
pub(crate) mod http;
mod run;
mod schedule;
mod send;
mod start;
mod store;
mod supervise;
mod traces;
pub mod view;

pub use error::Error;
pub use send::Sender;
pub use supervise::Runs;
