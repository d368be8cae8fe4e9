//! Append an event to the transactional outbox, inside the caller's own transaction.
//!
//! **Promises.** The event and the caller's rows commit together or not at all. For one key, `seq` order is the
//! order in which the aggregate's states came to be, because an event can only be appended with a [`Locked`]: the
//! proof that the aggregate's row was inserted, updated or locked first in the same transaction. An event that
//! does not fit its topic is refused here, before the commit.
//!
//! **Does not promise.** Nothing here speaks to Kafka: the relay publishes, at least once and in order per key.
//! The [`Hint`] that wakes it is a hint and may be lost.
//!
//! ```no_run
//! # use waybill_event::{Event, order::OrderEvent};
//! # async fn example(mut tx: sqlx::PgTransaction<'_>, outbox: waybill_outbox::Outbox, event: OrderEvent)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! let key = event.key();
//! let update = sqlx::query("update invoice set paid = true where id = $1").bind(&key);
//! if let Some(locked) = waybill_outbox::updated(&mut tx, &key, update).await? {
//!     outbox.append(&mut tx, &locked, &event).await?;
//! }
//! tx.commit().await?;
//! outbox.ring();
//! # Ok(())
//! # }
//! ```

#![warn(missing_docs)]

mod append;
mod bucket;
mod hint;
mod locked;

pub use append::{DEFAULT_MAX_BYTES, Draft, Error, Outbox, append_many};
pub use bucket::{BUCKETS, bucket, partition};
pub use hint::{CHANNEL, Hint};
pub use locked::{Locked, inserted, lock, lock_many, serialize, updated};

/// The migrations of schema `messaging`'s outbox part, with a history table of their own
/// (`messaging.outbox_migrations`), so that they run beside the migrations of the service itself.
pub fn migrator() -> sqlx::migrate::Migrator {
    let mut migrator = sqlx::migrate!("./migrations");
    migrator.dangerous_set_table_name("messaging.outbox_migrations");
    migrator.create_schema("messaging");
    // A newer version may have applied more, which only adds.
    migrator.set_ignore_missing(true);
    migrator
}
