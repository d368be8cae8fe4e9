//! Consumer runtime: inbox and handler in one transaction, retries, dead letters, replays.
//!
//! **Promises.** The effect that a handler writes into its transaction happens once per message id and group, however
//! often Kafka delivers the message. What may pass a message that is still being retried, a [`Subscription`] says: nothing
//! of its partition, nothing of its key, or everything. An offset moves only when every message before it is `done` or
//! parked in the database, or acknowledged by a retry topic, or by the dead-letter topic and marked `dead`. What cannot
//! be decoded, panics or fails for good never stops the process.
//!
//! **Does not promise.** Effects outside the transaction may happen more than once. A foreign message without an id
//! is told apart by its coordinates only, so a producer's own duplicate of it counts as a new message. A dead letter
//! may be published more than once, always under the same id.
//!
//! ```no_run
//! # use waybill_consumer::{Consumer, Failure, Handler, Message, Settings, Subscription, Tx};
//! # use waybill_event::OrderEvent;
//! struct Log;
//! impl Handler for Log {
//!     type Event = OrderEvent;
//!     async fn handle(&self, tx: &mut Tx<'_>, message: &Message<OrderEvent>) -> Result<(), Failure> {
//!         sqlx::query("insert into seen (order_id) values ($1)")
//!             .bind(message.key_text())
//!             .execute(&mut **tx)
//!             .await?;
//!         Ok(())
//!     }
//! }
//! # async fn example(pool: sqlx::PgPool, settings: Settings, shutdown: tokio_util::sync::CancellationToken)
//! # -> Result<(), waybill_consumer::Error> {
//! let consumer = Consumer::builder(pool, settings)
//!     .subscribe(Subscription::new("orders.v1", "log").handler(Log))
//!     .build()?;
//! consumer.run(shutdown).await
//! # }
//! ```

mod backoff;
mod batch;
mod breaker;
mod codecs;
mod consumer;
pub mod crash;
mod engine;
mod failure;
mod group;
mod handler;
pub mod harness;
mod horizon;
mod lane;
mod line;
mod message;
pub mod metrics;
mod operations;
mod park;
mod policy;
mod record;
mod redirect;
mod settings;
mod span;
mod status;
mod store;
mod tx;
mod work;

pub use breaker::{BreakerPhase, BreakerSettings, BreakerState};
pub use consumer::{Builder, Consumer, Error};
pub use failure::Failure;
pub use handler::{BatchHandler, Handler, Outcome};
pub use horizon::{Horizon, purge};
pub use lane::{Subscribed, Subscription};
pub use message::Message;
pub use operations::{
    Check, Checked, InboxState, MAX_CHECKED, OperationError, Operations, SubscriptionState,
};
pub use park::{ParkSettings, ParkedGauge, ParkedKey};
pub use policy::{AfterDead, ReplaySafety, RetryPolicy};
pub use redirect::VALUE_BYTES;
pub use settings::{GroupProtocol, Settings, dead_letter_topic, replay_topic, retry_topic};
pub use status::{Blocked, Status};
pub use tx::Tx;

/// The migrations of schema `messaging`'s inbox part, with a history table of their own
/// (`messaging.consumer_migrations`), so that they run beside the migrations of the service itself.
#[must_use]
pub fn migrator() -> sqlx::migrate::Migrator {
    let mut migrator = sqlx::migrate!("./migrations");
    migrator.dangerous_set_table_name("messaging.consumer_migrations");
    migrator.create_schema("messaging");
    // A newer version may have applied more, which only adds.
    migrator.set_ignore_missing(true);
    migrator
}
