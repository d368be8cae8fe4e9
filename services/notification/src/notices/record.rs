//! Events become notification rows and the tasks that send them, in the transaction of their inbox row.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use sqlx::PgConnection;
use uuid::Uuid;
use waybill_consumer::{Failure, Handler, Message, Tx};
use waybill_event::{MessageId, OrderEvent, PointEvent, TraceContext};
use waybill_task::{New, TaskId, Tasks};

use super::send::KIND;
use super::store::{self, Fresh};
use super::templates::{Locale, Notice};

/// Tasks remembered between their enqueueing and the commit. Above it are those of transactions that never committed.
const REMEMBERED: usize = 4_096;

/// Tells customers of their orders: the group's handler of `orders.v1`.
#[derive(Debug, Clone)]
pub struct OrderNotices(Recorder);

/// Tells customers of points earned: the group's handler of `points.v1`.
#[derive(Debug, Clone)]
pub struct PointNotices(Recorder);

/// What both handlers do.
#[derive(Debug, Clone)]
struct Recorder {
    locale: Locale,
    tasks: Tasks,
    enqueued: Arc<Mutex<HashMap<MessageId, TaskId>>>,
}

impl OrderNotices {
    /// Writes in a language; hands the tasks to the worker of `tasks` after the commit.
    pub fn new(locale: Locale, tasks: Tasks) -> Self {
        Self(Recorder::new(locale, tasks))
    }
}

impl PointNotices {
    /// Writes in a language; hands the tasks to the worker of `tasks` after the commit.
    pub fn new(locale: Locale, tasks: Tasks) -> Self {
        Self(Recorder::new(locale, tasks))
    }
}

impl Handler for OrderNotices {
    type Event = OrderEvent;

    async fn handle(&self, tx: &mut Tx<'_>, message: &Message<OrderEvent>) -> Result<(), Failure> {
        let OrderEvent { order_id, customer_id, .. } = message.event;
        self.0.record(tx, message, order_id, customer_id, Notice::of_order(&message.event)).await
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        self.0.hand_off(messages);
    }
}

impl Handler for PointNotices {
    type Event = PointEvent;

    async fn handle(&self, tx: &mut Tx<'_>, message: &Message<PointEvent>) -> Result<(), Failure> {
        let PointEvent { order_id, customer_id, .. } = message.event;
        self.0.record(tx, message, order_id, customer_id, Notice::of_points(&message.event)).await
    }

    fn committed(&self, messages: &[Message<PointEvent>]) {
        self.0.hand_off(messages);
    }
}

impl Recorder {
    fn new(locale: Locale, tasks: Tasks) -> Self {
        Self { locale, tasks, enqueued: Arc::default() }
    }

    /// The message's partition is held, so tasks of an order are enqueued in the order of its events.
    async fn record<E>(
        &self,
        tx: &mut PgConnection,
        message: &Message<E>,
        order_id: Uuid,
        customer_id: Uuid,
        notice: Option<Notice>,
    ) -> Result<(), Failure> {
        // Events that nobody is told of are acknowledged like any other.
        let Some(notice) = notice else { return Ok(()) };
        let trace = TraceContext::current().or_else(|| message.trace.clone());
        let send = New { trace: trace.clone(), ..New::of(KIND, json!({})).key(order_id.to_string()) };
        let task = self.tasks.enqueue(tx, &send).await?;
        let fresh = Fresh {
            notification_id: task.as_uuid(),
            message_id: message.id.as_uuid(),
            order_id,
            customer_id,
            notice,
            locale: self.locale,
            trace: trace.as_ref(),
        };
        store::insert(tx, &fresh).await?;
        self.remember(message.id, task);
        Ok(())
    }

    fn remember(&self, message: MessageId, task: TaskId) {
        let mut enqueued = self.enqueued.lock().unwrap_or_else(PoisonError::into_inner);
        if enqueued.len() >= REMEMBERED {
            // What is forgotten waits for the poller.
            enqueued.clear();
        }
        enqueued.insert(message, task);
    }

    fn hand_off<E>(&self, messages: &[Message<E>]) {
        let mut enqueued = self.enqueued.lock().unwrap_or_else(PoisonError::into_inner);
        for task in messages.iter().filter_map(|message| enqueued.remove(&message.id)) {
            self.tasks.hand_off(task);
        }
    }
}
