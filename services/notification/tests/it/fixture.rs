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
use waybill_notification::notices::{self, Locale, OrderNotices, PointNotices};
use waybill_task::{Settings, Tasks};
use waybill_testkit::{Database, eventually};

pub(crate) struct Fixture {
    pub(crate) database: Database,
    harness: Harness,
    orders: OrderNotices,
    points: PointNotices,
}

/// A worker that sends beside the test.
pub(crate) struct Sender {
    pub(crate) tasks: Tasks,
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), waybill_task::Error>>,
}

/// Short delays between attempts.
pub(crate) fn settings(poll: Duration) -> Settings {
    Settings {
        poll,
        retry_min: Duration::from_millis(5),
        retry_max: Duration::from_millis(20),
        attempts: notices::ATTEMPTS,
        ..Settings::default()
    }
}

impl Fixture {
    pub(crate) async fn new(locale: Locale) -> Self {
        Self::on(Database::create(&waybill_notification::migrators()).await, locale)
    }

    /// Hands over to nobody: all is left to pollers, as after a crash.
    pub(crate) fn on(database: Database, locale: Locale) -> Self {
        crate::seen::watch();
        let (harness, tasks) = (Harness::new(database.pool.clone(), "notification"), Tasks::new());
        let orders = OrderNotices::new(locale, tasks.clone());
        let points = PointNotices::new(locale, tasks);
        Self { database, harness, orders, points }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.database.pool
    }

    /// From now on hands over to this sender.
    pub(crate) fn hand_over_to(&mut self, sender: &Sender, locale: Locale) {
        self.orders = OrderNotices::new(locale, sender.tasks.clone());
        self.points = PointNotices::new(locale, sender.tasks.clone());
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

    pub(crate) fn sender(&self, poll: Duration) -> Sender {
        self.sender_with(settings(poll))
    }

    pub(crate) fn sender_with(&self, settings: Settings) -> Sender {
        let (tasks, shutdown) = (Tasks::new(), CancellationToken::new());
        let worker = notices::worker(self.pool().clone(), &tasks, settings).expect("builds");
        Sender { tasks, running: tokio::spawn(worker.run(shutdown.clone())), shutdown }
    }

    pub(crate) async fn execute(&self, sql: &'static str) {
        sqlx::raw_sql(sql).execute(self.pool()).await.expect("runs");
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

impl Sender {
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.running.await.expect("no panic").expect("ends well");
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
