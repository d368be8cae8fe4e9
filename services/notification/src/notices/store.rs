//! All SQL of the notifications.

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgPool};
use uuid::Uuid;
use waybill_event::TraceContext;

use super::templates::{Locale, Notice};

/// A notification to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notification {
    /// Its id and its task's, stable over repetitions.
    pub notification_id: Uuid,
    /// Place in the order of recording.
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
    /// State of its task; none when it was purged, or sent before there were tasks.
    pub task: Option<String>,
    /// Tries, one under way or the successful one included.
    pub attempts: i32,
    /// Not sent: why the last try failed.
    pub last_error: Option<String>,
}

/// What a notification is about, to be written.
#[derive(Debug)]
pub(super) struct Fresh<'a> {
    /// Id of the task that will send it.
    pub notification_id: Uuid,
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
/// purged after its horizon, this row is not. The task given then finds nothing to send.
pub(super) async fn insert(tx: &mut PgConnection, fresh: &Fresh<'_>) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "insert into notification
             (notification_id, message_id, order_id, customer_id, kind, body, traceparent, tracestate)
         values ($1, $2, $3, $4, $5, $6, $7, $8)
         on conflict on constraint notification_message_id_key do nothing",
        fresh.notification_id,
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

/// A notification, unless it was sent.
pub(super) async fn unsent(pool: &PgPool, id: Uuid) -> Result<Option<Notification>, sqlx::Error> {
    sqlx::query_as!(
        Notification,
        "select notification_id, seq, message_id, order_id, customer_id, kind, channel, body
         from notification
         where notification_id = $1 and sent_at is null",
        id,
    )
    .fetch_optional(pool)
    .await
}

/// Marks what was sent, in the transaction that ends its task.
pub(super) async fn mark_sent(tx: &mut PgConnection, id: Uuid, attempts: u32) -> Result<(), sqlx::Error> {
    sqlx::query!(
        "update notification set sent_at = clock_timestamp(), attempts = $2, last_error = null
         where notification_id = $1 and sent_at is null",
        id,
        i32::try_from(attempts).unwrap_or(i32::MAX),
    )
    .execute(tx)
    .await?;
    Ok(())
}

/// When the oldest notification was written that is still to be sent, or was given up and waits for an operator.
pub(super) async fn oldest_unsent(pool: &PgPool) -> Result<Option<DateTime<Utc>>, sqlx::Error> {
    sqlx::query_scalar!(
        "select n.created_at
         from notification n
         join messaging.task t on t.id = n.notification_id
         where n.sent_at is null and t.status in ('pending', 'running', 'failed')
         order by n.created_at
         limit 1"
    )
    .fetch_optional(pool)
    .await
}

/// The notifications of an order, in order; of one customer only, or of any. What is not sent is told by its task.
pub(super) async fn list(
    pool: &PgPool,
    order_id: Uuid,
    customer_id: Option<Uuid>,
) -> Result<Vec<NotificationRow>, sqlx::Error> {
    sqlx::query_as!(
        NotificationRow,
        r#"select n.notification_id, n.kind, n.channel, n.body, n.created_at, n.sent_at,
                  t.status as "task?",
                  case when n.sent_at is null then coalesce(t.attempts, n.attempts) else n.attempts end
                      as "attempts!",
                  case when n.sent_at is null then t.last_error end as last_error
           from notification n
           left join messaging.task t on t.id = n.notification_id
           where n.order_id = $1 and ($2::uuid is null or n.customer_id = $2)
           order by n.seq
           limit 200"#,
        order_id,
        customer_id,
    )
    .fetch_all(pool)
    .await
}
