//! For tests only: a database and a topic prefix of one's own, waiting for conditions, tokens, a receiver of traces,
//! and processes that end with the test.
//!
//! PostgreSQL and Kafka are real. Their addresses come from `DATABASE_URL` (any database of a server on which
//! databases may be created) and `KAFKA_BOOTSTRAP`, as `cargo dev test` sets them; without these variables from
//! the running `cargo dev up`.

#![warn(missing_docs)]

pub mod broker;
pub mod corpus;
pub mod database;
pub mod environment;
pub mod jwt;
pub mod otlp;
pub mod process;
pub mod segments;
pub mod topics;
mod wait;

pub use broker::Broker;
pub use database::Database;
pub use topics::{Record, Topics};
pub use wait::{PATIENCE, eventually};
