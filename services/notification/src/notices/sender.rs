//! Sends what was recorded: at once after the commit, or by the poller; per order in `seq` order, whoever sends.
//!
//! At least once: a notification is sent inside the transaction that claims its row, and marked after. A process that
//! dies in between leaves the row unsent and, with its connection, unlocked; the next sender sends it again under
//! the same id. The *first* sending of each notification is in order; a sender that stalls longer than the database
//! lets it idle may repeat an old one later.

use std::collections::BTreeSet;
use std::time::Duration;

use sqlx::PgPool;
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;
use uuid::Uuid;
use waybill_event::TraceContext;
use waybill_service::postgres;

use super::channel::{Channel, SendError};
use super::metrics::Metrics;
use super::store::{self, Notification};

/// Orders whose notifications are sent in one transaction, and at most waiting for it in memory.
const BATCH: usize = 100;
const QUEUE: usize = 1_024;
/// First and longest pause after a failed try; doubles in between.
const AGAIN_MIN: Duration = Duration::from_secs(1);
const AGAIN_MAX: Duration = Duration::from_secs(300);

/// The sender's ear: orders that have something to be sent. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Queue(mpsc::Sender<Uuid>);

/// Sends notifications. One a process is enough; any number of processes may run one.
#[derive(Debug)]
pub struct Sender {
    pool: PgPool,
    queue: mpsc::Receiver<Uuid>,
    poll: Duration,
    metrics: Metrics,
}

impl Queue {
    /// Offers orders for an immediate try; never waits. What does not fit is left to the poller.
    pub fn offer(&self, orders: impl Iterator<Item = Uuid>) {
        for order in orders {
            if self.0.try_send(order).is_err() {
                return;
            }
        }
    }
}

impl Sender {
    /// A sender that looks for leftovers every `poll`, and the queue that wakes it earlier.
    pub fn new(pool: PgPool, poll: Duration) -> (Self, Queue) {
        let (sender, queue) = mpsc::channel(QUEUE);
        (Self { pool, queue, poll, metrics: Metrics::new() }, Queue(sender))
    }

    /// Sends until `shutdown`, then what is still queued. Stop the consumers before: what they commit later is left
    /// to the next start.
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut ticks = interval(self.poll);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut orders = Vec::with_capacity(BATCH);
        loop {
            let outcome = tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                // Before the queue, so that a busy queue never keeps leftovers waiting.
                _ = ticks.tick() => self.sweep(&shutdown).await,
                _ = self.queue.recv_many(&mut orders, BATCH), if !self.queue.is_closed() => {
                    self.deliver(orders.drain(..).collect()).await
                }
            };
            report(outcome);
        }
        while let Ok(order) = self.queue.try_recv() {
            orders.push(order);
        }
        report(self.deliver(orders.into_iter().collect()).await);
    }

    /// Walks over every order that has something unsent, and takes the time of the oldest.
    async fn sweep(&self, shutdown: &CancellationToken) -> Result<(), sqlx::Error> {
        let mut after = Uuid::nil();
        while !shutdown.is_cancelled() {
            let orders = store::unsent_orders(&self.pool, after, BATCH as i64).await?;
            let Some(last) = orders.last() else { break };
            after = *last;
            self.deliver(orders.into_iter().collect()).await?;
        }
        self.metrics.oldest(store::oldest_unsent(&self.pool).await?);
        Ok(())
    }

    /// Sends everything unsent of these orders, round by round: in each the oldest of every order.
    async fn deliver(&self, mut orders: BTreeSet<Uuid>) -> Result<(), sqlx::Error> {
        while !orders.is_empty() {
            let round: Vec<Uuid> = orders.iter().copied().take(BATCH).collect();
            let sent = self.round(&round).await?;
            // An order stays until nothing of it can be claimed: it is empty, not due, or another sender's.
            for order in round.iter().filter(|order| !sent.contains(order)) {
                orders.remove(order);
            }
        }
        Ok(())
    }

    /// One transaction: claim, send, mark. Gives the orders of which something was sent.
    async fn round(&self, orders: &[Uuid]) -> Result<BTreeSet<Uuid>, sqlx::Error> {
        let mut tx = postgres::begin(&self.pool).await?;
        let claimed = store::claim(&mut tx, orders).await?;
        let mut sent = Vec::with_capacity(claimed.len());
        for notification in &claimed {
            fail::fail_point!("notification.before_send");
            match send(notification) {
                Ok(()) => {
                    fail::fail_point!("notification.after_send");
                    sent.push(notification);
                }
                Err(error) => {
                    let again = again_in(notification.attempts);
                    tracing::warn!(
                        notification_id = %notification.notification_id,
                        order_id = %notification.order_id,
                        error = &error as &dyn std::error::Error,
                        again_in = ?again,
                        "notification was not sent; the order's later ones wait",
                    );
                    store::mark_failed(&mut tx, notification.notification_id, &error.to_string(), again)
                        .await?;
                    self.metrics.failed(&notification.channel);
                }
            }
        }
        let ids: Vec<Uuid> = sent.iter().map(|notification| notification.notification_id).collect();
        store::mark_sent(&mut tx, &ids).await?;
        tx.commit().await?;
        for notification in &sent {
            self.metrics.sent(&notification.kind, &notification.channel);
        }
        Ok(sent.into_iter().map(|notification| notification.order_id).collect())
    }
}

/// Sends in a span of the consumed event's trace.
fn send(notification: &Notification) -> Result<(), SendError> {
    let channel = Channel::named(&notification.channel)?;
    let span = span(notification);
    span.in_scope(|| channel.send(notification));
    Ok(())
}

fn span(notification: &Notification) -> Span {
    let span = tracing::info_span!(
        parent: None,
        "send notification",
        otel.kind = "producer",
        notification_id = %notification.notification_id,
        order_id = %notification.order_id,
        kind = notification.kind,
        channel = notification.channel,
    );
    let parent = notification.traceparent.as_deref();
    let trace = parent.and_then(|parent| TraceContext::parse(parent, notification.tracestate.as_deref()));
    if let Some(trace) = trace {
        // Before the span is entered: later it would be refused. Without a tracing layer there is nothing to set.
        let _ = span.set_parent(trace.to_context());
    }
    span
}

fn again_in(attempts: i32) -> Duration {
    let doublings = u32::try_from(attempts).unwrap_or(0).min(16);
    (AGAIN_MIN * 2u32.pow(doublings)).min(AGAIN_MAX)
}

/// The one place where a failing database shows: the next tick tries again.
fn report(outcome: Result<(), sqlx::Error>) {
    if let Err(error) = outcome {
        tracing::warn!(
            error = &error as &dyn std::error::Error,
            "notifications were not sent; the poller tries again"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_doubles_up_to_five_minutes() {
        assert_eq!([0, 1, 2, 9].map(again_in).map(|d| d.as_secs()), [1, 2, 4, 300]);
        assert_eq!(again_in(i32::MAX), AGAIN_MAX);
    }
}
