//! The process: built from its settings, then run until it is told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::FromRef;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use waybill_outbox::{Hint, Outbox};
use waybill_service::auth::Verifier;
use waybill_service::gate::Gate;
use waybill_service::health::{self, Health};
use waybill_service::http::{Limits, Listeners, RateLimit};
use waybill_service::jobs::Jobs;
use waybill_service::{ConfigError, http, metrics, postgres, shutdown};

use crate::idempotency::purge;
use crate::metrics::Metrics;
use crate::orders::Orders;
use crate::{Config, NAME, api, migrators};

/// Left of the grace period for closing the database and sending the last spans.
const CLOSING: Duration = Duration::from_secs(5);

/// Why the service does not start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database cannot be reached.
    #[error(transparent)]
    Database(#[from] postgres::Error),
}

/// What handlers get.
#[derive(Debug, Clone)]
pub(crate) struct AppState {
    pub(crate) orders: Arc<Orders>,
    pub(crate) rate: RateLimit,
    verifier: Verifier,
}

impl FromRef<AppState> for Verifier {
    fn from_ref(state: &AppState) -> Self {
        state.verifier.clone()
    }
}

/// The service with its ports bound, not yet serving.
#[derive(Debug)]
pub struct App {
    pool: PgPool,
    health: Health,
    state: AppState,
    listeners: Listeners,
    background: CancellationToken,
    limits: Limits,
    jobs: Jobs,
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
        let jobs = Jobs::new(pool.clone(), vec![purge::job(pool.clone())], &config.jobs)?;
        let listeners = Listeners::bind(&config.http).await?;
        let background = CancellationToken::new();
        let hint = Hint::start(config.postgres.options(NAME)?, background.clone());
        let outbox = Outbox::new(config.kafka.topic_prefix, config.outbox_max_bytes).with_hint(hint);
        let gate = Gate::new(pool.clone(), &config.gate);
        let orders = Orders { gate, outbox, settings: config.orders, metrics: Metrics::new() };
        let state = AppState { orders: Arc::new(orders), rate: RateLimit::new(&config.rate), verifier };
        let health = Health::new();
        let limits = config.limits;
        Ok(Self { pool, health, state, listeners, background, limits, jobs })
    }

    /// Address of the API.
    pub fn local_addr(&self) -> SocketAddr {
        self.listeners.local_addr
    }

    /// Address of `/metrics`.
    pub fn metrics_addr(&self) -> SocketAddr {
        self.listeners.metrics_addr
    }

    /// Serves until `shutdown`; then takes no new request, ends the running ones, and closes the database. After
    /// the grace period it returns whatever still runs.
    ///
    /// # Errors
    /// A listener failed, or the grace period was not enough.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Self { pool, health, state, listeners, background, limits, jobs } = self;
        let Listeners { api, metrics, local_addr, metrics_addr } = listeners;
        // Also when `run` itself is dropped.
        let _stop_background = background.clone().drop_guard();
        // Kafka is no part of the readiness: orders are taken without.
        let database = health::keep_database(health.check("database"), pool.clone());
        tokio::spawn(background.clone().run_until_cancelled_owned(database));
        tokio::spawn(background.clone().run_until_cancelled_owned(state.rate.clone().sweep()));
        let routes = api::router(state).merge(health::router(health));
        tracing::info!(%local_addr, %metrics_addr, "order service is up");
        let serve = async {
            let jobs = async {
                jobs.run(shutdown.clone()).await;
                Ok(())
            };
            tokio::try_join!(
                http::serve_within(api, http::frame(routes), limits.clone(), shutdown.clone()),
                http::serve_within(metrics, metrics::router(), limits.clone(), shutdown.clone()),
                jobs,
            )
        };
        let too_late = async {
            shutdown.cancelled().await;
            tokio::time::sleep(shutdown::GRACE - CLOSING).await;
        };
        let served = tokio::select! {
            served = serve => served.map(drop).context("a listener failed"),
            () = too_late => Err(anyhow::anyhow!("requests did not end within the grace period")),
        };
        background.cancel();
        pool.close().await;
        served
    }
}
