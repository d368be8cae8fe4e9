//! The point service against real PostgreSQL and Kafka, and its pure core against random histories.

mod api;
mod binary;
mod corpus;
mod histories;
mod kafka;
mod ledger;
mod properties;
mod traces;
