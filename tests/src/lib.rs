//! The whole of Waybill under test: the five real binaries on a real PostgreSQL and a real Kafka, a client of the
//! order API, and the invariants that the tables must show after anything that happened.

pub mod bench;
pub mod chaos;
pub mod client;
pub mod events;
pub mod fuzz;
pub mod invariants;
pub mod operator;
pub mod poison;
pub mod status;
pub mod system;
pub mod worker;

pub use client::Client;
pub use operator::Operator;
pub use system::System;
