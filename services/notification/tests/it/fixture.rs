//! A database, the handlers on it, and events to give them.

use std::time::Duration;

use chrono::Utc;
use sqlx::PgPool;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_consumer::Message;
use waybill_consumer::harness::Harness;
use waybill_event::{OrderEvent, PointEvent};
use waybill_notification::notices::{Locale, OrderNotices, PointNotices, Queue, Sender};
use waybill_testkit::{Database, eventually};

pub(crate) struct Fixture {
    pub(crate) database: Database,
    harness: Harness,
    orders: OrderNotices,
    points: PointNotices,
    /// Ends with the fixture, never run: what is handed over to it is lost, as in a crash.
    _lost: Sender,
}

/// A sender that runs.
pub(crate) struct Running {
    pub(crate) queue: Queue,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

impl Fixture {
    pub(crate) async fn new(locale: Locale) -> Self {
        crate::seen::watch();
        let database = Database::create(&waybill_notification::migrators()).await;
        let (lost, queue) = Sender::new(database.pool.clone(), Duration::from_secs(3600));
        Self::with(database, locale, queue, lost)
    }

    fn with(database: Database, locale: Locale, queue: Queue, lost: Sender) -> Self {
        let harness = Harness::new(database.pool.clone(), "notification");
        let orders = OrderNotices::new(locale, queue.clone());
        let points = PointNotices::new(locale, queue);
        Self { database, harness, orders, points, _lost: lost }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.database.pool
    }

    /// From now on hands over to this sender's queue.
    pub(crate) fn hand_over_to(&mut self, running: &Running, locale: Locale) {
        self.orders = OrderNotices::new(locale, running.queue.clone());
        self.points = PointNotices::new(locale, running.queue.clone());
    }

    pub(crate) async fn orders(&self, messages: Vec<Message<OrderEvent>>) {
        let count = messages.len();
        let delivered = self.harness.deliver(&self.orders, messages).await.expect("database");
        assert_eq!(delivered.done.len(), count, "{delivered:?}");
    }

    pub(crate) async fn points(&self, messages: Vec<Message<PointEvent>>) {
        let count = messages.len();
        let delivered = self.harness.deliver(&self.points, messages).await.expect("database");
        assert_eq!(delivered.done.len(), count, "{delivered:?}");
    }

    /// An order told of from placing to cancelling: five notifications.
    pub(crate) async fn tell_all(&self, order: &OrderEvent) {
        let kinds = ["placed", "confirmed", "refunded", "payment_failed", "cancelled"];
        self.orders(kinds.map(|kind| Message::new(of(order, kind))).into()).await;
    }

    pub(crate) fn sender(&self, poll: Duration) -> Running {
        let (sender, queue) = Sender::new(self.pool().clone(), poll);
        let shutdown = CancellationToken::new();
        Running { queue, task: tokio::spawn(sender.run(shutdown.clone())), shutdown }
    }

    pub(crate) async fn unsent(&self) -> i64 {
        sqlx::query_scalar("select count(*) from notification where sent_at is null")
            .fetch_one(self.pool())
            .await
            .expect("notifications")
    }

    pub(crate) async fn all_sent(&self) {
        eventually(async || match self.unsent().await {
            0 => Ok(()),
            left => Err(left),
        })
        .await;
    }
}

impl Running {
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.task.await.expect("no panic");
    }
}

pub(crate) fn order(kind: &str) -> OrderEvent {
    OrderEvent {
        order_id: Uuid::now_v7(),
        version: 1,
        r#type: kind.to_owned(),
        status: "CONFIRMED".to_owned(),
        customer_id: Uuid::now_v7(),
        currency: "KRW".to_owned(),
        items: Vec::new(),
        total: 10_000,
        payment_method: "CARD".to_owned(),
        attempt: None,
        points_used: 0,
        paid: 0,
        refunded: 0,
        earn_base: 0,
        earn_rate_bp: 100,
        expires_at: None,
        reason: None,
        occurred_at: Utc::now(),
    }
}

pub(crate) fn of(order: &OrderEvent, kind: &str) -> OrderEvent {
    OrderEvent { r#type: kind.to_owned(), version: order.version + 1, ..order.clone() }
}

pub(crate) fn points(order: &OrderEvent, kind: &str, delta: i64) -> PointEvent {
    PointEvent {
        entry_id: Uuid::now_v7(),
        order_id: order.order_id,
        customer_id: order.customer_id,
        attempt_id: None,
        kind: kind.to_owned(),
        delta,
        available_after: 777,
        reason: None,
        occurred_at: Utc::now(),
    }
}
