//! The process: built from its settings, then run until it is told to stop.

use std::net::SocketAddr;

use axum::Router;
use axum::middleware::map_response;
use sqlx::PgPool;
use tokio::task::JoinSet;
use tokio_util::sync::{CancellationToken, DropGuard};
use waybill_consumer::{Consumer, Horizon, RetryPolicy, Settings, Subscription};
use waybill_event::{Event, OrderEvent};
use waybill_operations as operations;
use waybill_outbox::{Hint, Outbox};
use waybill_service::auth::Verifier;
use waybill_service::health::{self, Health};
use waybill_service::http::Listeners;
use waybill_service::jobs::{Job, Jobs};
use waybill_service::shutdown::{part, within_grace};
use waybill_service::{ConfigError, http, metrics, postgres};

use crate::points::{self, MovePoints};
use crate::{Config, GROUP, NAME, migrators};

/// Name of the job that purges the inbox, for `JOBS`.
const PURGE_INBOX: &str = "purge-inbox";
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
}

/// The service with its ports bound, not yet serving or consuming.
#[derive(Debug)]
pub struct App {
    pool: PgPool,
    consumer: Consumer,
    jobs: Jobs,
    routes: Router,
    listeners: Listeners,
    health: Health,
    background: DropGuard,
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
        let jobs = Jobs::new(pool.clone(), vec![purge_inbox(pool.clone())], &config.jobs)?;
        let listeners = Listeners::bind(&config.http).await?;
        let background = CancellationToken::new();
        let hint = Hint::start(config.postgres.options(NAME)?, background.clone());
        let prefix = config.kafka.topic_prefix.clone();
        let outbox = Outbox::new(prefix.clone(), config.outbox_max_bytes).with_hint(hint);
        let settings = Settings::new(config.kafka.client_settings()?, prefix.clone());
        let consumer = Consumer::builder(pool.clone(), settings)
            // Any order of arrival ends the same: a version that is not the newest does nothing.
            .subscribe(
                Subscription::new(OrderEvent::TOPIC, GROUP)
                    .retry(RetryPolicy::default())
                    .batch_handler(MovePoints::new(outbox)),
            )
            .build()?;
        let health = Health::new();
        let routes = points::http::router(pool.clone(), verifier.clone())
            .merge(operations::consumer::router(consumer.operations(), prefix, verifier));
        let routes = operations::described("Waybill points", "The points of customers.", routes)
            .layer(map_response(http::no_store))
            .merge(health::router(health.clone()));
        let background = background.drop_guard();
        Ok(Self { pool, consumer, jobs, routes, listeners, health, background })
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
    /// its offsets, and closes the database. After the grace period it returns whatever still runs.
    ///
    /// # Errors
    /// A part failed, or the grace period was not enough.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Self { pool, consumer, jobs, routes, listeners, health, background } = self;
        let Listeners { api, metrics, local_addr, metrics_addr } = listeners;
        // A part that fails ends the others in order, as a signal does.
        let stop = shutdown.child_token();
        let mut watching = JoinSet::new();
        let (database, consuming, status) =
            (health.check("database"), health.check("consumer"), consumer.status());
        watching.spawn(health::keep_database(database, pool.clone()));
        watching.spawn(health::keep(consuming, move || std::future::ready(status.ready())));
        tracing::info!(%local_addr, %metrics_addr, "point service is up");
        let consume = part(&stop, "consumer", consumer.run(stop.clone()));
        let serve =
            part(&stop, "API", http::serve(api, http::frame_with(routes, operations::BODIES), stop.clone()));
        let export = part(&stop, "metrics", http::serve(metrics, metrics::router(), stop.clone()));
        let parts = async {
            let (consumed, served, exported, ()) =
                tokio::join!(consume, serve, export, jobs.run(stop.clone()));
            consumed.and(served).and(exported)
        };
        let ended = within_grace(&stop, Box::pin(parts)).await;
        drop((background, watching));
        pool.close().await;
        ended
    }
}

/// When it is off, only the table grows.
fn purge_inbox(pool: PgPool) -> Job {
    Job::purge(PURGE_INBOX, pool, async |pool| waybill_consumer::purge(&pool, Horizon::default()).await)
}
