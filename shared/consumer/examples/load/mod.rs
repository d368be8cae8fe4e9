//! What the measuring examples share: a ledger like that of a real service, and topics full of orders.

#![allow(dead_code, reason = "each example uses its part")]
#![allow(clippy::unwrap_used, reason = "an example that cannot measure ends")]

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::anyhow;
use futures::future::join_all;
use rdkafka::{
    ClientConfig,
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
};
use sqlx::{PgConnection, PgPool, postgres::PgPoolOptions};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_consumer::{
    BatchHandler, Consumer, Failure, Handler, Message, Outcome, Settings, Subscribed, Tx, dead_letter_topic,
};
use waybill_event::{Event, MessageId, OrderEvent, headers};
use waybill_testkit::{Database, Topics};

pub(crate) const GROUP: &str = "bench";
/// Orders with this currency are refused.
const POISON: &str = "XXX";

/// An entry per order and a balance per customer, as a point service has them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    /// Messages whose effect is committed.
    pub(crate) done: Arc<AtomicUsize>,
    wanted: Arc<AtomicUsize>,
    reached: Arc<Notify>,
}

pub(crate) async fn database() -> Database {
    let mut database = Database::create(&[waybill_consumer::migrator()]).await;
    // As a service's: no question to the server before each use.
    let options = PgPoolOptions::new().max_connections(20).test_before_acquire(false);
    database.pool = options.connect(&database.url).await.unwrap();
    let tables = "create table entry (order_id uuid primary key, customer_id uuid not null, delta bigint not null); \
                  create table account (customer_id uuid primary key, balance bigint not null)";
    sqlx::raw_sql(tables).execute(&database.pool).await.unwrap();
    database
}

impl Ledger {
    async fn write(tx: &mut PgConnection, messages: &[&Message<OrderEvent>]) -> Result<(), sqlx::Error> {
        let orders: Vec<Uuid> = messages.iter().map(|message| message.event.order_id).collect();
        let customers: Vec<Uuid> = messages.iter().map(|message| message.event.customer_id).collect();
        let deltas: Vec<i64> = messages.iter().map(|message| message.event.paid / 100).collect();
        sqlx::query(
            "with entry as (
               insert into entry (order_id, customer_id, delta)
               select * from unnest($1::uuid[], $2::uuid[], $3::bigint[]) returning customer_id, delta)
             insert into account (customer_id, balance)
             select customer_id, sum(delta) from entry group by customer_id order by customer_id
             on conflict (customer_id) do update set balance = account.balance + excluded.balance",
        )
        .bind(orders)
        .bind(customers)
        .bind(deltas)
        .execute(tx)
        .await
        .map(drop)
    }

    fn count(&self, messages: usize) {
        let done = self.done.fetch_add(messages, Ordering::SeqCst) + messages;
        if done >= self.wanted.load(Ordering::SeqCst) {
            self.reached.notify_one();
        }
    }

    /// Runs a consumer until `count` messages more are done; the seconds since the first was.
    pub(crate) async fn timed(
        &self,
        pool: &PgPool,
        settings: Settings,
        subscribed: Subscribed,
        count: usize,
    ) -> f64 {
        self.wanted.store(self.done.load(Ordering::SeqCst) + 1, Ordering::SeqCst);
        let stop = CancellationToken::new();
        let consumer = Consumer::builder(pool.clone(), settings).subscribe(subscribed).build().unwrap();
        let running = tokio::spawn(consumer.run(stop.clone()));
        let first = self.done.load(Ordering::SeqCst);
        self.reached.notified().await;
        let started = Instant::now();
        self.wanted.store(first + count, Ordering::SeqCst);
        while self.done.load(Ordering::SeqCst) < first + count {
            let _ = tokio::time::timeout(Duration::from_millis(5), self.reached.notified()).await;
        }
        let seconds = started.elapsed().as_secs_f64();
        stop.cancel();
        running.await.unwrap().unwrap();
        seconds
    }
}

/// One statement a message.
impl Handler for Ledger {
    type Event = OrderEvent;

    async fn handle(&self, tx: &mut Tx<'_>, message: &Message<OrderEvent>) -> Result<(), Failure> {
        if message.event.currency == POISON {
            return Err(Failure::permanent(anyhow!("no rate for {POISON}")));
        }
        Ok(Self::write(tx, &[message]).await?)
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        self.count(messages.len());
    }
}

/// Writes first and finds the fault then, as a constraint of the database does.
#[derive(Debug, Clone)]
pub(crate) struct Late(pub(crate) Ledger);

impl Handler for Late {
    type Event = OrderEvent;

    async fn handle(&self, tx: &mut Tx<'_>, message: &Message<OrderEvent>) -> Result<(), Failure> {
        Ledger::write(tx, &[message]).await?;
        if message.event.currency == POISON {
            return Err(Failure::permanent(anyhow!("no rate for {POISON}")));
        }
        Ok(())
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        self.0.count(messages.len());
    }
}

/// One statement a batch.
impl BatchHandler for Ledger {
    type Event = OrderEvent;

    async fn handle(
        &self,
        tx: &mut PgConnection,
        messages: &[Message<OrderEvent>],
    ) -> Result<Vec<Outcome>, Failure> {
        let good: Vec<_> = messages.iter().filter(|message| message.event.currency != POISON).collect();
        Self::write(tx, &good).await?;
        let outcome = |message: &Message<OrderEvent>| match message.event.currency.as_str() {
            POISON => Outcome::Permanent(anyhow!("no rate for {POISON}")),
            _ => Outcome::Done,
        };
        Ok(messages.iter().map(outcome).collect())
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        self.count(messages.len());
    }
}

/// Fails the whole statement instead, so that the runtime has to find the message by savepoints.
#[derive(Debug, Clone)]
pub(crate) struct Blunt(pub(crate) Ledger);

impl BatchHandler for Blunt {
    type Event = OrderEvent;

    async fn handle(
        &self,
        tx: &mut PgConnection,
        messages: &[Message<OrderEvent>],
    ) -> Result<Vec<Outcome>, Failure> {
        if messages.iter().any(|message| message.event.currency == POISON) {
            return Err(Failure::permanent(anyhow!("no rate for {POISON}")));
        }
        BatchHandler::handle(&self.0, tx, messages).await
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        self.0.count(messages.len());
    }
}

pub(crate) fn order(poison: bool) -> OrderEvent {
    OrderEvent {
        order_id: Uuid::now_v7(),
        version: 1,
        r#type: "confirmed".to_owned(),
        status: "CONFIRMED".to_owned(),
        // Many: partitions that share few rows wait for each other seldom, and what is measured is the runtime.
        customer_id: Uuid::from_u128(rand::random_range(0..1_000_000)),
        currency: if poison { POISON } else { "KRW" }.to_owned(),
        items: vec![waybill_event::OrderItem { sku: "TEA-1".to_owned(), quantity: 2, unit_price: 500 }; 3],
        total: 3_000,
        payment_method: "CARD".to_owned(),
        attempt: None,
        points_used: 0,
        paid: 3_000,
        refunded: 0,
        earn_base: 3_000,
        earn_rate_bp: 100,
        expires_at: None,
        reason: None,
        occurred_at: chrono::Utc::now(),
    }
}

pub(crate) fn producer(topics: &Topics, linger_ms: u32) -> FutureProducer {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", &topics.bootstrap)
        .set("partitioner", "murmur2_random")
        .set("enable.idempotence", "true")
        .set("linger.ms", linger_ms.to_string());
    config.create().unwrap()
}

/// Sends one order to a partition; resolves with the acknowledgement.
pub(crate) async fn send(
    producer: &FutureProducer,
    topic: &str,
    partition: i32,
    order: &OrderEvent,
    id: MessageId,
) {
    let (value, id, key) = (waybill_event::encode(order).unwrap(), id.to_string(), order.key());
    let list = OwnedHeaders::new_with_capacity(2)
        .insert(Header { key: headers::CE_ID, value: Some(&id) })
        .insert(Header { key: headers::CE_TYPE, value: Some("waybill.order.confirmed") });
    let record = FutureRecord::to(topic).partition(partition).key(&key).payload(&value).headers(list);
    producer.send(record, Duration::from_secs(60)).await.unwrap();
}

/// Topics with `count` orders, every `poison`-th of them refused (0: none).
pub(crate) async fn filled(partitions: i32, count: usize, poison: usize) -> Topics {
    let topics = Topics::create(&[OrderEvent::TOPIC], partitions).await;
    topics.add(&dead_letter_topic("", OrderEvent::TOPIC, GROUP), partitions, &[]).await;
    let (producer, topic) = (producer(&topics, 5), topics.name(OrderEvent::TOPIC));
    let numbers: Vec<usize> = (0..count).collect();
    for chunk in numbers.chunks(5_000) {
        let sends = chunk.iter().map(async |number| {
            let order = order(poison > 0 && number % poison == poison / 2);
            send(&producer, &topic, *number as i32 % partitions, &order, MessageId::new()).await;
        });
        join_all(sends).await;
    }
    topics
}

pub(crate) fn settings(topics: &Topics) -> Settings {
    Settings::new(topics.client_settings(), topics.prefix.clone())
}
