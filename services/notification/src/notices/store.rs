//! All SQL of the notifications.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;
use waybill_event::TraceContext;

use super::templates::{Locale, Notice};

/// A notification to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// Its id, stable over repetitions.
    pub notification_id: Uuid,
    /// Place in the order of sending.
    pub seq: i64,
    /// The event that caused it.
    pub message_id: Uuid,
    /// The order it is about: the key whose order is kept.
    pub order_id: Uuid,
    /// To whom.
    pub customer_id: Uuid,
    /// The event's name.
    pub kind: String,
    /// Name of the channel.
    pub channel: String,
    /// The words.
    pub body: String,
    /// Trace of the consumed event.
    pub traceparent: Option<String>,
    /// Its state.
    pub tracestate: Option<String>,
    /// Failed tries so far.
    pub attempts: i32,
}

/// A notification as it is read.
#[derive(Debug, Clone)]
pub(super) struct NotificationRow {
    /// Its id.
    pub notification_id: Uuid,
    /// The event's name.
    pub kind: String,
    /// Name of the channel.
    pub channel: String,
    /// The words.
    pub body: String,
    /// When the event was consumed.
    pub created_at: DateTime<Utc>,
    /// When it was sent.
    pub sent_at: Option<DateTime<Utc>>,
    /// Tries, the successful one included.
    pub attempts: i32,
    /// Why the last try failed.
    pub last_error: Option<String>,
}

/// What a notification is about, to be written.
#[derive(Debug)]
pub(super) struct Fresh<'a> {
    /// The event's message id.
    pub message_id: Uuid,
    /// The order.
    pub order_id: Uuid,
    /// To whom.
    pub customer_id: Uuid,
    /// What is told.
    pub notice: Notice,
    /// Language.
    pub locale: Locale,
    /// Trace to go on with.
    pub trace: Option<&'a TraceContext>,
}

/// Writes one notification in the consumer's transaction. An event that has one already keeps it: the inbox is
/// purged after its horizon, this row is not.
pub(super) async fn insert(tx: &mut PgConnection, fresh: &Fresh<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "insert into notification
             (notification_id, message_id, order_id, customer_id, kind, body, traceparent, tracestate)
         values ($1, $2, $3, $4, $5, $6, $7, $8)
         on conflict on constraint notification_message_id_key do nothing",
        Uuid::now_v7(),
        fresh.message_id,
        fresh.order_id,
        fresh.customer_id,
        fresh.notice.kind(),
        fresh.notice.text(fresh.locale, fresh.order_id),
        fresh.trace.map(|trace| trace.traceparent.as_str()),
        fresh.trace.and_then(|trace| trace.tracestate.as_deref()),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Orders that have something unsent, in key order after `after`: pages of a walk over all of them.
pub(super) async fn unsent_orders(pool: &PgPool, after: Uuid, limit: i64) -> Result<Vec<Uuid>, sqlx::Error> {
    sqlx::query_scalar!(
        "select distinct order_id from notification
         where sent_at is null and order_id > $1
         order by order_id
         limit $2",
        after,
        limit,
    )
    .fetch_all(pool)
    .await
}

/// Claims the oldest unsent notification of each order, while the transaction lives; those of other senders and
/// those not due are left out.
///
/// Rule: only the *oldest* unsent row of an order is ever claimed, and the choice is made before the lock. `skip
/// locked` with an `order by` alone would step over a row that another sender holds and take the one behind it.
/// A row that was sent between choice and lock fails the second `sent_at is null`.
pub(super) async fn claim(tx: &mut PgConnection, orders: &[Uuid]) -> Result<Vec<Notification>, sqlx::Error> {
    sqlx::query_as!(
        Notification,
        "with head as (
             select distinct on (order_id) seq, due_at
             from notification
             where sent_at is null and order_id = any($1)
             order by order_id, seq
         )
         select n.notification_id, n.seq, n.message_id, n.order_id, n.customer_id, n.kind, n.channel, n.body,
                n.traceparent, n.tracestate, n.attempts
         from notification n
         join head on head.seq = n.seq
         where n.sent_at is null and head.due_at <= clock_timestamp()
         order by n.seq
         for update of n skip locked",
        orders,
    )
    .fetch_all(tx)
    .await
}

/// Marks what was sent.
pub(super) async fn mark_sent(tx: &mut PgConnection, ids: &[Uuid]) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update notification set sent_at = clock_timestamp(), attempts = attempts + 1, last_error = null
         where notification_id = any($1)",
        ids,
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// Marks a failed try; the order waits for it.
pub(super) async fn mark_failed(
    tx: &mut PgConnection,
    id: Uuid,
    error: &str,
    again_in: Duration,
) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update notification
         set attempts = attempts + 1, last_error = $2, due_at = clock_timestamp() + make_interval(secs => $3)
         where notification_id = $1",
        id,
        error,
        again_in.as_secs_f64(),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// When the oldest unsent notification was written.
pub(super) async fn oldest_unsent(pool: &PgPool) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    sqlx::query_scalar!(
        "select created_at from notification where sent_at is null order by created_at limit 1"
    )
    .fetch_optional(pool)
    .await
}

/// The notifications of an order, in order; of one customer only, or of any.
pub(super) async fn list(
    pool: &PgPool,
    order_id: Uuid,
    customer_id: Option<Uuid>,
) -> Result<Vec<NotificationRow>, sqlx::Error> {
    sqlx::query_as!(
        NotificationRow,
        "select notification_id, kind, channel, body, created_at, sent_at, attempts, last_error
         from notification
         where order_id = $1 and ($2::uuid is null or customer_id = $2)
         order by seq
         limit 200",
        order_id,
        customer_id,
    )
    .fetch_all(pool)
    .await
}
