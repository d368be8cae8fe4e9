//! Tasks on a real PostgreSQL.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod ends;
mod enqueueing;
mod exclusion;
mod measured;
mod operating;
mod order;
mod outage;
mod plans;
mod spans;
mod support;
mod unknown;
