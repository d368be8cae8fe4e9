//! Both sides of the park around a handler.

use std::{sync::Arc, time::Duration};

use sqlx::{PgConnection, PgPool, PgTransaction};
use tokio::{sync::Notify, task::JoinHandle};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_event::{Headers, MessageId, OrderEvent};
use waybill_testkit::{Database, eventually};

pub(super) use super::{
    handler::{Act, Effects},
    published::{Letter, Published},
};
use crate::{
    Failure, Message, RetryPolicy,
    batch::Fallen,
    metrics::Metrics,
    park::{Drainer, Opening, Outlet, ParkSettings, Parks, park_replay},
    record::{Record, RecordHeaders},
    settings::Settings,
    store::{self, Candidate, Lease},
    work::{Around, Each, Failed, Stumble, Work},
};

pub(super) const GROUP: &str = "notification";
pub(super) const TOPIC: &str = "orders.v1";
const DELAY: Duration = Duration::from_millis(20);

pub(super) struct Scene {
    pub(super) database: Database,
    pub(super) pool: PgPool,
    pub(super) handler: Effects,
    pub(super) published: Published,
    pub(super) settings: Arc<Settings>,
    pub(super) park: ParkSettings,
}

impl Scene {
    pub(super) async fn new() -> Self {
        let database = Database::create(&[crate::migrator()]).await;
        let table = "create table effect (seq bigint generated always as identity, key bytea, n bigint not null, \
                     message_id uuid not null, before bigint not null)";
        sqlx::raw_sql(table).execute(&database.pool).await.unwrap();
        let mut settings = Settings::new(Vec::new(), "");
        settings.retry_max = Duration::from_millis(200);
        let park = ParkSettings {
            retry: RetryPolicy { tiers: vec![DELAY; 2], ..RetryPolicy::default() },
            poll: Duration::from_millis(10),
            idle_poll: Duration::from_millis(30),
            lease: Duration::from_secs(20),
            ..ParkSettings::default()
        };
        let (handler, published) = (Effects::default(), Published::default());
        Self { pool: database.pool.clone(), database, handler, published, settings: Arc::new(settings), park }
    }

    pub(super) fn drain(&self) -> Draining {
        let (pool, handler, outside) = (self.pool.clone(), self.handler.clone(), self.published.clone());
        let (settings, park) = (Arc::clone(&self.settings), self.park.clone());
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let drainer = Drainer {
                pool,
                group: GROUP.to_owned(),
                topic: TOPIC.into(),
                settings,
                park,
                metrics: Metrics::new(),
                work: Each(&handler),
                outside,
                wake: Arc::new(Notify::new()),
                dead_letters: Outlet::default(),
                outcomes: Outlet::default(),
            };
            drainer.run(&stopped).await;
        });
        Draining { stop, task }
    }

    /// A batch as the runtime delivers it, until its transaction commits.
    pub(super) async fn deliver(&self, messages: &[Message<OrderEvent>]) {
        while let Err(error) = self.try_deliver(messages, usize::MAX).await {
            tracing::debug!(%error, "again");
        }
    }

    /// The same once; it ends without a commit behind the step of that number.
    pub(super) async fn try_deliver(
        &self,
        messages: &[Message<OrderEvent>],
        steps: usize,
    ) -> anyhow::Result<()> {
        let mut lease = Lease::acquire(&self.pool).await?;
        let mut tx = lease.begin(&self.settings).await?;
        let step = |n| if n == steps { Err(anyhow::anyhow!("crash")) } else { Ok(()) };
        let claimed = claim(&mut tx, messages).await?;
        step(0)?;
        let claimed: Vec<_> =
            messages.iter().filter(|message| claimed.contains(&message.id.as_uuid())).map(copy).collect();
        let mut parks = Parks::read(&mut tx, GROUP, TOPIC, &claimed).await?;
        step(1)?;
        self.each(&mut tx, &claimed, &mut parks).await?;
        step(2)?;
        parks.write(&mut tx).await?;
        step(3)?;
        store::settle(&mut tx).await?;
        step(4)?;
        tx.commit().await?;
        lease.release();
        Ok(())
    }

    async fn each(
        &self,
        tx: &mut PgTransaction<'_>,
        claimed: &[Message<OrderEvent>],
        parks: &mut Parks<'_>,
    ) -> anyhow::Result<()> {
        let metrics = Metrics::new();
        let around = Around { group: GROUP, metrics: &metrics };
        store::savepoint(tx).await?;
        for message in claimed {
            if parks.holds(message) {
                parks.divert(message);
                continue;
            }
            let failed = match Each(&self.handler).one(tx, message, around).await {
                Ok(()) => {
                    store::next_savepoint(tx).await?;
                    continue;
                }
                Err(Stumble::Failed(failed)) if !failed.failure.lost_connection() => failed,
                Err(stumble) => anyhow::bail!("{stumble:?}"),
            };
            store::undo(tx).await?;
            let opening = match failed.failure {
                Failure::Transient(_) => Opening::Retry { attempts: 1, due_in: DELAY, failed: None },
                Failure::Permanent(_) => Opening::Dead(died(message, &failed)),
            };
            parks.open(message, opening);
        }
        Ok(())
    }

    pub(super) async fn replay(&self, message: &Message<OrderEvent>, replay: Uuid) {
        park_replay(&self.pool, &self.settings, GROUP, TOPIC, &[(message, replay)]).await.unwrap();
    }

    pub(super) async fn dead(&self, ids: &[MessageId]) {
        let ids = ids.iter().map(MessageId::as_uuid).collect();
        store::mark_dead(&self.pool, GROUP, ids).await.unwrap();
    }

    /// Numbers of the messages with an effect, in the order of the effects.
    pub(super) async fn effects(&self) -> Vec<i64> {
        sqlx::query_scalar("select n from effect order by seq").fetch_all(&self.pool).await.unwrap()
    }

    pub(super) async fn until_effects(&self, expected: &[i64]) {
        eventually(async || {
            let seen = self.effects().await;
            if seen == expected { Ok(()) } else { Err(seen) }
        })
        .await;
    }

    pub(super) async fn until_empty(&self) {
        eventually(async || match self.parked().await {
            (0, 0) => Ok(()),
            parked => Err(parked),
        })
        .await;
    }

    /// Keys and messages.
    pub(super) async fn parked(&self) -> (i64, i64) {
        sqlx::query_as(
            "select (select count(*) from messaging.parked_key), (select count(*) from messaging.parked_message)",
        )
        .fetch_one(&self.pool)
        .await
        .unwrap()
    }

    pub(super) async fn inbox(&self, id: MessageId) -> Option<(String, Option<Uuid>)> {
        sqlx::query_as("select outcome, replay_id from messaging.processed_message where message_id = $1")
            .bind(id.as_uuid())
            .fetch_optional(&self.pool)
            .await
            .unwrap()
    }

    /// Somebody waits for a lock.
    pub(super) async fn until_blocked(&self) {
        eventually(async || {
            let blocked: i64 = sqlx::query_scalar(
                "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
            )
            .fetch_one(&self.pool)
            .await
            .unwrap();
            if blocked > 0 { Ok(()) } else { Err("nobody waits") }
        })
        .await;
    }
}

/// As the runtime makes it of a permanent failure.
pub(super) fn died(message: &Message<OrderEvent>, failed: &Failed) -> Fallen {
    Fallen {
        record: Arc::clone(message.record()),
        id: message.id,
        attempt: message.attempt,
        code: failed.failure.code(),
        class: "permanent",
        text: failed.failure.text(),
        failed_at: chrono::Utc::now(),
        traceparent: None,
        again: None,
    }
}

pub(super) async fn claim(
    tx: &mut PgConnection,
    messages: &[Message<OrderEvent>],
) -> Result<Vec<Uuid>, sqlx::Error> {
    let candidate = |message: &Message<OrderEvent>| Candidate { id: message.id.as_uuid(), made: None };
    let candidates = messages.iter().map(candidate).collect();
    let horizon = Settings::new(Vec::new(), "").horizon.stale_after();
    Ok(store::claim(tx, GROUP, candidates, horizon).await?.into_iter().map(|(id, _)| id).collect())
}

pub(super) struct Draining {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Draining {
    pub(super) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }

    /// As a crash: whatever is under way is dropped.
    pub(super) async fn abort(self) {
        self.task.abort();
        assert!(self.task.await.unwrap_err().is_cancelled());
    }
}

pub(super) fn record(key: Option<&[u8]>, n: i64) -> Record {
    let headers = [waybill_event::Header::new("given", vec![0xff]), waybill_event::Header::null("given")];
    Record {
        topic: TOPIC.into(),
        partition: 3,
        offset: n,
        timestamp_ms: Some(n),
        key: key.map(<[u8]>::to_vec),
        value: waybill_event::encode(&order(n)).ok(),
        headers: RecordHeaders::Read(headers.into_iter().collect::<Headers>()),
    }
}

/// The message with that number of that key.
pub(super) fn message(key: Option<&[u8]>, n: i64) -> Message<OrderEvent> {
    Message::decoded(order(n), MessageId::new(), Arc::new(record(key, n)))
}

/// As it is delivered again.
pub(super) fn copy(message: &Message<OrderEvent>) -> Message<OrderEvent> {
    Message::decoded(message.event.clone(), message.id, Arc::clone(message.record()))
}

pub(super) fn messages(key: &[u8], count: i64) -> Vec<Message<OrderEvent>> {
    (1..=count).map(|n| message(Some(key), n)).collect()
}

fn order(version: i64) -> OrderEvent {
    OrderEvent {
        order_id: Uuid::now_v7(),
        version,
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
