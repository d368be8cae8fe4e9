//! A handler that does as it is told, and a consumer around it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use rdkafka::{
    message::{Header, OwnedHeaders},
    producer::{FutureProducer, FutureRecord},
};
use sqlx::{PgConnection, PgPool};
use tokio::{sync::Semaphore, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_consumer::{
    BatchHandler, Consumer, Error, Failure, Handler, Message, Outcome, Settings, Status, Subscribed,
    Subscription, Tx,
};
use waybill_event::{Event, MessageId, OrderEvent, headers};
use waybill_testkit::{Database, Topics, eventually};

pub(crate) const GROUP: &str = "point";

/// What the handler does with an order.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    Transient,
    Permanent,
    /// Fails before anything is written.
    Refuse,
    RefuseForNow,
    /// Asks another pool first, which has no connection.
    PoolTimedOut,
    Panic,
    /// Runs a statement of its own first, and returns its error.
    Sql(&'static str),
    /// Runs a statement and forgets its error.
    Swallow(&'static str),
    /// Runs a statement once, then behaves.
    SqlOnce(&'static str),
    /// Waits for a permit.
    Gate(Arc<Semaphore>),
}

/// Writes a row per message into `effect`, unless told otherwise for the order.
#[derive(Debug, Clone, Default)]
pub(crate) struct Effects {
    acts: Arc<Mutex<HashMap<Uuid, Act>>>,
    calls: Arc<Mutex<Vec<Uuid>>>,
    committed: Arc<Mutex<Vec<MessageId>>>,
    /// Sizes of the calls of [`Batches`].
    batches: Arc<Mutex<Vec<usize>>>,
}

impl Effects {
    pub(crate) fn on(&self, order: Uuid, act: Act) {
        self.acts.lock().unwrap().insert(order, act);
    }

    pub(crate) fn heal(&self, order: Uuid) {
        self.acts.lock().unwrap().remove(&order);
    }

    /// How often the handler was called for an order.
    pub(crate) fn calls(&self, order: Uuid) -> usize {
        self.calls.lock().unwrap().iter().filter(|called| **called == order).count()
    }

    pub(crate) fn committed(&self) -> Vec<MessageId> {
        self.committed.lock().unwrap().clone()
    }

    pub(crate) fn batches(&self) -> Vec<usize> {
        self.batches.lock().unwrap().clone()
    }

    /// What is said before anything is written.
    fn judge(&self, order: Uuid) -> Result<(), Failure> {
        self.calls.lock().unwrap().push(order);
        match self.acts.lock().unwrap().get(&order) {
            Some(Act::Refuse) => Err(Failure::permanent(anyhow::anyhow!("refused"))),
            Some(Act::RefuseForNow) => Err(Failure::transient(anyhow::anyhow!("refused for now"))),
            Some(Act::PoolTimedOut) => Err(sqlx::Error::PoolTimedOut.into()),
            _ => Ok(()),
        }
    }

    async fn act(&self, tx: &mut PgConnection, order: Uuid) -> Result<(), Failure> {
        let act = self.acts.lock().unwrap().get(&order).cloned();
        match act {
            None | Some(Act::Refuse | Act::RefuseForNow | Act::PoolTimedOut) => {}
            Some(Act::Transient) => return Err(Failure::transient(anyhow::anyhow!("not now"))),
            Some(Act::Permanent) => {
                return Err(Failure::permanent(anyhow::anyhow!("never, says kim@example.com")));
            }
            Some(Act::Panic) => panic!("told to"),
            Some(Act::Sql(statement)) => {
                sqlx::query(statement).execute(tx).await?;
            }
            Some(Act::Swallow(statement)) => drop(sqlx::query(statement).execute(tx).await),
            Some(Act::SqlOnce(statement)) => {
                self.heal(order);
                sqlx::query(statement).execute(tx).await?;
            }
            Some(Act::Gate(gate)) => gate.acquire().await.unwrap().forget(),
        }
        Ok(())
    }
}

impl Handler for Effects {
    type Event = OrderEvent;

    async fn handle(&self, tx: &mut Tx<'_>, message: &Message<OrderEvent>) -> Result<(), Failure> {
        self.judge(message.event.order_id)?;
        // Before the act, so that a failure leaves something to undo.
        write(tx, &[message]).await?;
        self.act(tx, message.event.order_id).await
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        self.committed.lock().unwrap().extend(messages.iter().map(|message| message.id));
    }
}

/// The same, set-based.
#[derive(Debug, Clone, Default)]
pub(crate) struct Batches(pub(crate) Effects);

impl BatchHandler for Batches {
    type Event = OrderEvent;

    async fn handle(
        &self,
        tx: &mut PgConnection,
        messages: &[Message<OrderEvent>],
    ) -> Result<Vec<Outcome>, Failure> {
        // Judges first: what is not done must have left nothing behind.
        let (mut outcomes, mut done) = (Vec::new(), Vec::new());
        for message in messages {
            let order = message.event.order_id;
            let judged = match self.0.judge(order) {
                Ok(()) => self.0.act(tx, order).await,
                Err(failure) => Err(failure),
            };
            outcomes.push(match judged {
                Ok(()) => {
                    done.push(message);
                    Outcome::Done
                }
                Err(Failure::Transient(error)) => Outcome::Transient(error),
                Err(Failure::Permanent(error)) => Outcome::Permanent(error),
            });
        }
        self.0.batches.lock().unwrap().push(messages.len());
        write(tx, &done).await?;
        Ok(outcomes)
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        Handler::committed(&self.0, messages);
    }
}

async fn write(tx: &mut PgConnection, messages: &[&Message<OrderEvent>]) -> Result<(), sqlx::Error> {
    let ids: Vec<Uuid> = messages.iter().map(|message| message.id.as_uuid()).collect();
    let orders: Vec<Uuid> = messages.iter().map(|message| message.event.order_id).collect();
    sqlx::query(
        "insert into effect (message_id, order_id) \
         select m, o from unnest($1::uuid[], $2::uuid[]) with ordinality as t(m, o, n) order by n",
    )
    .bind(ids)
    .bind(orders)
    .execute(tx)
    .await
    .map(drop)
}

/// The inbox and the table of effects, which has no constraint that would hide a double effect.
pub(crate) async fn database() -> Database {
    let database = Database::create(&[waybill_consumer::migrator()]).await;
    let table = "create table effect (seq bigint generated always as identity, message_id uuid not null, \
                 order_id uuid not null); \
                 create table deferred (n int, constraint n_unique unique (n) deferrable initially deferred); \
                 insert into deferred values (1)";
    sqlx::raw_sql(table).execute(&database.pool).await.unwrap();
    database
}

/// Orders with an effect, in the order of the writes.
pub(crate) async fn effects(pool: &PgPool) -> Vec<Uuid> {
    sqlx::query_scalar("select order_id from effect order by seq").fetch_all(pool).await.unwrap()
}

/// `(message, outcome)` of the inbox.
pub(crate) async fn inbox(pool: &PgPool) -> HashMap<Uuid, String> {
    let rows: Vec<(Uuid, String)> =
        sqlx::query_as("select message_id, outcome from messaging.processed_message")
            .fetch_all(pool)
            .await
            .unwrap();
    rows.into_iter().collect()
}

pub(crate) fn order() -> OrderEvent {
    OrderEvent {
        order_id: Uuid::now_v7(),
        version: 1,
        r#type: "confirmed".to_owned(),
        status: "CONFIRMED".to_owned(),
        customer_id: Uuid::now_v7(),
        currency: "KRW".to_owned(),
        items: Vec::new(),
        total: 1_000,
        payment_method: "ON_DELIVERY".to_owned(),
        attempt: None,
        points_used: 0,
        paid: 1_000,
        refunded: 0,
        earn_base: 1_000,
        earn_rate_bp: 100,
        expires_at: None,
        reason: None,
        occurred_at: chrono::Utc::now(),
    }
}

pub(crate) fn orders(count: usize) -> Vec<OrderEvent> {
    (0..count).map(|_| order()).collect()
}

pub(crate) fn ids(orders: &[OrderEvent]) -> Vec<Uuid> {
    orders.iter().map(|order| order.order_id).collect()
}

/// Produces to chosen partitions with one producer.
pub(crate) struct Source<'t> {
    topics: &'t Topics,
    producer: FutureProducer,
}

impl<'t> Source<'t> {
    pub(crate) fn new(topics: &'t Topics) -> Self {
        Self { topics, producer: topics.producer() }
    }

    pub(crate) async fn orders(&self, partition: i32, orders: &[OrderEvent]) -> Vec<MessageId> {
        let messages: Vec<_> = orders.iter().map(|order| (order, MessageId::new())).collect();
        let sends = messages.iter().map(|(order, id)| self.order(partition, order, *id));
        futures::future::join_all(sends).await;
        messages.into_iter().map(|(_, id)| id).collect()
    }

    pub(crate) async fn order(&self, partition: i32, order: &OrderEvent, id: MessageId) {
        let value = waybill_event::encode(order).unwrap();
        let id = id.to_string();
        let list = [(headers::CE_ID, Some(id.as_bytes()))];
        self.raw(partition, Some(order.key().as_bytes()), Some(&value), &list).await;
    }

    pub(crate) async fn raw(
        &self,
        partition: i32,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        headers: &[(&str, Option<&[u8]>)],
    ) {
        let topic = self.topics.name(OrderEvent::TOPIC);
        let list = headers
            .iter()
            .fold(OwnedHeaders::new(), |list, (key, value)| list.insert(Header { key, value: *value }));
        let mut record = FutureRecord::<[u8], [u8]>::to(&topic).partition(partition).headers(list);
        record.key = key;
        record.payload = value;
        self.producer.send(record, Duration::from_secs(30)).await.unwrap();
    }
}

pub(crate) fn settings(topics: &Topics) -> Settings {
    let mut settings = Settings::new(topics.client_settings(), topics.prefix.clone());
    settings.retry_max = Duration::from_millis(300);
    settings
}

pub(crate) fn each(handler: &Effects) -> Subscribed {
    Subscription::new(OrderEvent::TOPIC, GROUP).handler(handler.clone())
}

pub(crate) fn dead_letter_topic() -> String {
    waybill_consumer::dead_letter_topic("", OrderEvent::TOPIC, GROUP)
}

pub(crate) async fn topics(partitions: i32) -> Topics {
    let topics = Topics::create(&[OrderEvent::TOPIC], partitions).await;
    topics.add(&dead_letter_topic(), partitions, &[]).await;
    topics
}

/// A consumer that runs until it is stopped.
pub(crate) struct Running {
    pub(crate) status: Status,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub(crate) fn start(pool: &PgPool, settings: Settings, subscribed: Subscribed) -> Self {
        let consumer = Consumer::builder(pool.clone(), settings).subscribe(subscribed).build().unwrap();
        let (status, stop) = (consumer.status(), CancellationToken::new());
        Self { status, task: tokio::spawn(consumer.run(stop.clone())), stop }
    }

    pub(crate) async fn ready(&self) {
        eventually(async || self.status.ready()).await;
    }

    /// Drops the run wherever it is.
    pub(crate) async fn abort(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}

pub(crate) async fn until_effects(pool: &PgPool, count: usize) -> Vec<Uuid> {
    eventually(async || {
        let effects = effects(pool).await;
        if effects.len() >= count {
            Ok(effects)
        } else {
            Err(format!("{} of {count} effects", effects.len()))
        }
    })
    .await
}

pub(crate) async fn until_committed(topics: &Topics, partition: i32, next: i64) {
    eventually(async || match topics.committed(GROUP, OrderEvent::TOPIC, partition).await {
        Some(offset) if offset == next => Ok(()),
        other => Err(format!("committed {other:?}, not {next}")),
    })
    .await;
}

/// Compares as sets with counts.
pub(crate) fn sorted(mut ids: Vec<Uuid>) -> Vec<Uuid> {
    ids.sort_unstable();
    ids
}
