//! Events become notification rows, in the transaction of their inbox row.

use sqlx::PgConnection;
use uuid::Uuid;
use waybill_consumer::{Failure, Handler, Message};
use waybill_event::{OrderEvent, PointEvent, TraceContext};

use super::sender::Queue;
use super::store::{self, Fresh};
use super::templates::{Locale, Notice};

/// Tells customers of their orders: the group's handler of `orders.v1`.
#[derive(Debug, Clone)]
pub struct OrderNotices {
    locale: Locale,
    queue: Queue,
}

/// Tells customers of points earned: the group's handler of `points.v1`.
#[derive(Debug, Clone)]
pub struct PointNotices {
    locale: Locale,
    queue: Queue,
}

impl OrderNotices {
    /// Writes in a language and hands over to a sender after the commit.
    pub fn new(locale: Locale, queue: Queue) -> Self {
        Self { locale, queue }
    }
}

impl PointNotices {
    /// Writes in a language and hands over to a sender after the commit.
    pub fn new(locale: Locale, queue: Queue) -> Self {
        Self { locale, queue }
    }
}

impl Handler for OrderNotices {
    type Event = OrderEvent;

    async fn handle(&self, tx: &mut PgConnection, message: &Message<OrderEvent>) -> Result<(), Failure> {
        let OrderEvent { order_id, customer_id, .. } = message.event;
        record(tx, message, order_id, customer_id, Notice::of_order(&message.event), self.locale).await
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        let told = messages.iter().filter(|message| Notice::of_order(&message.event).is_some());
        self.queue.offer(told.map(|message| message.event.order_id));
    }
}

impl Handler for PointNotices {
    type Event = PointEvent;

    async fn handle(&self, tx: &mut PgConnection, message: &Message<PointEvent>) -> Result<(), Failure> {
        let PointEvent { order_id, customer_id, .. } = message.event;
        record(tx, message, order_id, customer_id, Notice::of_points(&message.event), self.locale).await
    }

    fn committed(&self, messages: &[Message<PointEvent>]) {
        let told = messages.iter().filter(|message| Notice::of_points(&message.event).is_some());
        self.queue.offer(told.map(|message| message.event.order_id));
    }
}

async fn record<E>(
    tx: &mut PgConnection,
    message: &Message<E>,
    order_id: Uuid,
    customer_id: Uuid,
    notice: Option<Notice>,
    locale: Locale,
) -> Result<(), Failure> {
    // Events that nobody is told of are acknowledged like any other.
    let Some(notice) = notice else { return Ok(()) };
    let trace = TraceContext::current().or_else(|| message.trace.clone());
    let message_id = message.id.as_uuid();
    store::insert(tx, &Fresh { message_id, order_id, customer_id, notice, locale, trace: trace.as_ref() })
        .await?;
    Ok(())
}
