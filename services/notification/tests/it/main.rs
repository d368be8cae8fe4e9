//! The notification service against real PostgreSQL and Kafka.

mod api;
mod binary;
mod corpus;
mod fixture;
mod kafka;
mod processes;
mod record;
mod seen;
mod send;
mod upgrade;
