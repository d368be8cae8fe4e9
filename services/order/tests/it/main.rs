//! The order service in process, against a real PostgreSQL.

mod app;
mod bodies;
mod corpus;
mod door;
mod http;
mod idempotency;
mod list;
mod logs;
mod openapi;
mod outbox;
mod place;
mod purge;
mod round_trips;
mod wire;
