//! The process: built from its settings, then run until it is told to stop.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::middleware::map_response;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use waybill_consumer::{AfterDead, Consumer, Horizon, RetryPolicy, Settings, Subscription};
use waybill_event::{Event, OrderEvent, PointEvent};
use waybill_operations as operations;
use waybill_service::auth::Verifier;
use waybill_service::health::{self, Health};
use waybill_service::http::Listeners;
use waybill_service::jobs::{Job, Jobs};
use waybill_service::shutdown::{part, within_grace};
use waybill_service::{ConfigError, http, metrics, postgres};
use waybill_task::{Tasks, Worker};

use crate::notices::{self, OldestUnsent, OrderNotices, PointNotices};
use crate::{Config, GROUP, NAME, migrators};

/// Name of the job that purges the inbox, for `JOBS`.
const PURGE_INBOX: &str = "purge-inbox";
/// Name of the job that purges finished tasks.
const PURGE_TASKS: &str = "purge-tasks";
/// How long finished tasks are kept for operators to look at; the notification itself stays.
const TASKS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database cannot be reached.
    #[error(transparent)]
    Database(#[from] postgres::Error),
    /// The consumer cannot be made.
    #[error("consumer cannot be made")]
    Consumer(#[from] waybill_consumer::Error),
    /// The worker that sends cannot be made.
    #[error("task worker cannot be made")]
    Worker(#[from] waybill_task::Error),
}

/// The service with its ports bound, not yet serving or consuming.
#[derive(Debug)]
pub struct App {
    pool: PgPool,
    consumer: Consumer,
    jobs: Jobs,
    worker: Worker,
    routes: Router,
    listeners: Listeners,
    health: Health,
}

/// What is told of one order keeps its order, whatever fails. After a dead letter the later ones go on: a customer who
/// was not told of one thing must still be told of the next.
fn in_order(topic: &str) -> Subscription {
    Subscription::new(topic, GROUP).key_ordered(RetryPolicy::default(), AfterDead::Continue)
}

impl App {
    /// Connects to the database and binds the ports. Starts no telemetry: several can live in one process.
    ///
    /// # Errors
    /// See [`BuildError`].
    pub async fn build(config: Config) -> Result<Self, BuildError> {
        config.check()?;
        let verifier = Verifier::load(&config.auth).await?;
        let pool = config.postgres.connect(NAME).await?;
        postgres::require_migrated(&pool, NAME, &migrators()).await?;
        let jobs = Jobs::new(
            pool.clone(),
            vec![purge_inbox(pool.clone()), purge_tasks(pool.clone())],
            &config.jobs,
        )?;
        let listeners = Listeners::bind(&config.http).await?;
        let tasks = Tasks::new();
        let worker = notices::worker(pool.clone(), &tasks, config.sending())?;
        let locale = config.notification_locale;
        let prefix = config.kafka.topic_prefix.clone();
        let settings = Settings::new(config.kafka.client_settings()?, prefix.clone());
        let orders = OrderNotices::new(locale, tasks.clone());
        let points = PointNotices::new(locale, tasks);
        let consumer = Consumer::builder(pool.clone(), settings)
            .subscribe(in_order(OrderEvent::TOPIC).handler(orders))
            .subscribe(in_order(PointEvent::TOPIC).handler(points))
            .build()?;
        let health = Health::new();
        let routes = notices::http::router(pool.clone(), verifier.clone())
            .merge(operations::consumer::router(consumer.operations(), prefix, verifier.clone()))
            .merge(operations::tasks::router(pool.clone(), verifier));
        let routes = operations::described("Waybill notifications", "What customers were told.", routes)
            .layer(map_response(http::no_store))
            .merge(health::router(health.clone()));
        Ok(Self { pool, consumer, jobs, worker, routes, listeners, health })
    }

    /// Address of the API.
    pub fn local_addr(&self) -> SocketAddr {
        self.listeners.local_addr
    }

    /// Address of `/metrics`.
    pub fn metrics_addr(&self) -> SocketAddr {
        self.listeners.metrics_addr
    }

    /// Consumes and serves until `shutdown`; then takes no new request and no new batch, ends what runs, commits
    /// its offsets, and closes the database. What is not sent by then is left to other instances and the next start.
    /// After the grace period it returns whatever still runs.
    ///
    /// # Errors
    /// A part failed, or the grace period was not enough.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Self { pool, consumer, jobs, worker, routes, listeners, health } = self;
        let Listeners { api, metrics, local_addr, metrics_addr } = listeners;
        // A part that fails ends the others in order, as a signal does.
        let stop = shutdown.child_token();
        let mut background = JoinSet::new();
        let (database, consuming, status) =
            (health.check("database"), health.check("consumer"), consumer.status());
        background.spawn(health::keep_database(database, pool.clone()));
        background.spawn(health::keep(consuming, move || std::future::ready(status.ready())));
        background.spawn(OldestUnsent::new(pool.clone()).watch());
        tracing::info!(%local_addr, %metrics_addr, "notification service is up");
        // The worker goes on until the consumers have ended: what they commit last is sent if it comes through.
        let consumed = CancellationToken::new();
        let send = part(&stop, "task worker", worker.run(consumed.clone()));
        let consume = async {
            let ended = part(&stop, "consumer", consumer.run(stop.clone())).await;
            consumed.cancel();
            ended
        };
        let serve =
            part(&stop, "API", http::serve(api, http::frame_with(routes, operations::BODIES), stop.clone()));
        let export = part(&stop, "metrics", http::serve(metrics, metrics::router(), stop.clone()));
        let parts = async {
            let (consumed, sent, served, exported, ()) =
                tokio::join!(consume, send, serve, export, jobs.run(stop.clone()));
            consumed.and(sent).and(served).and(exported)
        };
        let ended = within_grace(&stop, Box::pin(parts)).await;
        drop(background);
        pool.close().await;
        ended
    }
}

/// When it is off, only the table grows.
fn purge_inbox(pool: PgPool) -> Job {
    Job::purge(PURGE_INBOX, pool, async |pool| waybill_consumer::purge(&pool, Horizon::default()).await)
}

/// Of finished tasks. When it is off, only the table grows.
fn purge_tasks(pool: PgPool) -> Job {
    Job::purge(PURGE_TASKS, pool, async |pool| waybill_task::operate::purge(&pool, TASKS_KEPT).await)
}
