//! Durable tasks: work that a transaction leaves behind, and that is then done outside of it.
//!
//! **Promises.** A task and the caller's rows commit together or not at all. A committed task is run until it is done,
//! cancelled, or failed visibly. One attempt at a time holds a task: each claim draws a fresh token, and what an attempt
//! writes through its [`Guard`] is written only while the token is still its own. Tasks with one order key run one after
//! the other, in the order in which they were enqueued.
//!
//! **Does not promise.** Effects outside of a [`Guard`]'s transaction may happen more than once, or go on for a moment
//! in an attempt that has lost its task. The hand-off after the commit is a short cut: what it loses, the poller finds.
//! Two transactions that enqueue for one key at the same time, holding nothing of that key, have no order between them.
//!
//! The README shows how to write a handler.

#![warn(missing_docs)]

mod backoff;
mod enqueue;
mod guard;
mod handler;
pub mod metrics;
pub mod operate;
#[doc(hidden)]
pub mod probe;
mod settings;
mod span;
mod store;
mod task;
mod worker;

pub use enqueue::{HAND_OFF, Tasks};
pub use guard::{Guard, Transaction};
pub use handler::{Handler, Stop};
pub use settings::Settings;
pub use task::{New, Running, Status, TaskId};
pub use worker::{Builder, Error, Worker};

/// The migrations of schema `messaging`'s task part, with a history table of their own (`messaging.task_migrations`),
/// so that they run beside the migrations of the service itself, before or after the outbox's and the consumer's.
#[must_use]
pub fn migrator() -> sqlx::migrate::Migrator {
    let mut migrator = sqlx::migrate!("./migrations");
    migrator.dangerous_set_table_name("messaging.task_migrations");
    migrator.create_schema("messaging");
    // A newer version may have applied more, which only adds.
    migrator.set_ignore_missing(true);
    migrator
}

/// The README's example, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
