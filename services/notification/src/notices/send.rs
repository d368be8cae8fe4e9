//! Sends what was recorded: the handler of the task that every notification has.
//!
//! At least once: the row is marked after the send, in the transaction that ends the task. An attempt that dies in
//! between is made again when its lease is over, under the same id. Per order one at a time and in order: the order is
//! the tasks' order key.

use sqlx::PgPool;
use waybill_task::{Guard, Handler, Running, Settings, Stop, Tasks, Worker};

use super::channel::{Channel, SendError};
use super::metrics::Metrics;
use super::store;

/// Kind of the tasks; the migration that made them for rows of the version before says it too.
pub const KIND: &str = "notification.send";
/// Attempts until a notification is given up and the order's later ones pass it: with delays of at most five minutes,
/// two and a half on average, about a day. An outage of a provider must end before customers are told out of order.
pub const ATTEMPTS: u32 = 600;

#[derive(Debug)]
struct SendNotice {
    pool: PgPool,
    metrics: Metrics,
}

/// The worker that sends what is enqueued at `tasks`, and what was left behind in the database.
///
/// # Errors
/// A setting that cannot work, or `tasks` that has a worker already.
pub fn worker(pool: PgPool, tasks: &Tasks, settings: Settings) -> Result<Worker, waybill_task::Error> {
    let handler = SendNotice { pool: pool.clone(), metrics: Metrics::new() };
    Worker::builder(pool, settings).hand_off(tasks).on(KIND, handler).build()
}

impl Handler for SendNotice {
    async fn run(&self, task: &Running, guard: &Guard) -> Result<(), Stop> {
        let id = task.id.as_uuid();
        // None: an instance of the version before has sent it, or the event had its notification already.
        let Some(notification) = store::unsent(&self.pool, id).await? else { return Ok(()) };
        // Also asks whether the task is still ours: a process that was stopped for longer than its lease ends here
        // instead of telling something old once more.
        if guard.cancel_requested().await? {
            return Err(Stop::Cancelled);
        }
        fail::fail_point!("notification.before_send");
        let channel = Channel::named(&notification.channel).map_err(|error| self.failed(error))?;
        channel.send(&notification);
        fail::fail_point!("notification.after_send");
        let mut tx = guard.begin().await?;
        store::mark_sent(&mut tx, id, task.attempt).await?;
        tx.complete().await?;
        self.metrics.sent(&notification.kind, &notification.channel);
        Ok(())
    }
}

impl SendNotice {
    /// Worth another try: a newer version that knows the channel may be on its way.
    fn failed(&self, error: SendError) -> Stop {
        match &error {
            SendError::UnknownChannel(channel) => self.metrics.failed(channel),
        }
        Stop::retry(error)
    }
}
