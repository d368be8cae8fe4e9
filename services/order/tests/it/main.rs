//! The order service in process, against a real PostgreSQL.

mod app;
mod bodies;
mod http;
mod idempotency;
mod list;
mod outbox;
mod place;
mod round_trips;
mod wire;
