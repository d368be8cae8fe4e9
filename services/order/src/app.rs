//! The process: built from its settings, then run until it is told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::extract::FromRef;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use waybill_outbox::{Hint, Outbox};
use waybill_service::auth::Verifier;
use waybill_service::gate::Gate;
use waybill_service::health::{self, Check, Health};
use waybill_service::http::{Limits, RateLimit};
use waybill_service::jobs::Jobs;
use waybill_service::{ConfigError, http, metrics, postgres, shutdown};

use crate::idempotency::purge;
use crate::metrics::Metrics;
use crate::orders::Orders;
use crate::{Config, NAME, api};

/// Pause between two checks of the database.
const CHECK_EVERY: Duration = Duration::from_secs(1);
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
    /// The database lacks our tables.
    #[error("database has no table {0}: run `waybill-order migrate` first")]
    NotMigrated(&'static str),
    /// The database refused to say.
    #[error("database does not tell its tables")]
    Schema(#[source] sqlx::Error),
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
    api: TcpListener,
    metrics: TcpListener,
    local_addr: SocketAddr,
    metrics_addr: SocketAddr,
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
        require_tables(&pool).await?;
        let jobs = Jobs::new(pool.clone(), vec![purge::job(pool.clone())], &config.jobs)?;
        let api = http::bind("HTTP_LISTEN", config.http.http_listen).await?;
        let metrics = http::bind("METRICS_LISTEN", config.http.metrics_listen).await?;
        let address =
            |name, listener: &TcpListener| listener.local_addr().map_err(|e| ConfigError::invalid(name, e));
        let local_addr = address("HTTP_LISTEN", &api)?;
        let metrics_addr = address("METRICS_LISTEN", &metrics)?;
        let background = CancellationToken::new();
        let hint = Hint::start(config.postgres.options(NAME)?, background.clone());
        let outbox = Outbox::new(config.kafka.topic_prefix, config.outbox_max_bytes).with_hint(hint);
        let gate = Gate::new(pool.clone(), &config.gate);
        let orders = Orders { gate, outbox, settings: config.orders, metrics: Metrics::new() };
        let state = AppState { orders: Arc::new(orders), rate: RateLimit::new(&config.rate), verifier };
        let health = Health::new();
        let limits = config.limits;
        Ok(Self { pool, health, state, api, metrics, local_addr, metrics_addr, background, limits, jobs })
    }

    /// Address of the API.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Address of `/metrics`.
    pub fn metrics_addr(&self) -> SocketAddr {
        self.metrics_addr
    }

    /// Serves until `shutdown`; then takes no new request, ends the running ones, and closes the database. After
    /// the grace period it returns whatever still runs.
    ///
    /// # Errors
    /// A listener failed, or the grace period was not enough.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Self { pool, health, state, api, metrics, local_addr, metrics_addr, background, limits, jobs } =
            self;
        // Also when `run` itself is dropped.
        let _stop_background = background.clone().drop_guard();
        let check = health.check("database");
        tokio::spawn(background.clone().run_until_cancelled_owned(watch(pool.clone(), check)));
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

async fn require_tables(pool: &PgPool) -> Result<(), BuildError> {
    for table in
        ["messaging.outbox", "messaging.job_lease", "orders", "order_item", "product", "idempotency_key"]
    {
        let found = sqlx::query_scalar!(r#"select to_regclass($1) is not null as "found!""#, table);
        if !found.fetch_one(pool).await.map_err(BuildError::Schema)? {
            return Err(BuildError::NotMigrated(table));
        }
    }
    Ok(())
}

/// Keeps the readiness: fails when the database does not answer, and when no connection is to be had. Kafka is no
/// part of it: orders are taken without.
async fn watch(pool: PgPool, check: Check) {
    loop {
        match sqlx::query_scalar!(r#"select 1 as "one!""#).fetch_one(&pool).await {
            Ok(_) => check.ok(),
            Err(sqlx::Error::PoolTimedOut) => check.failing("no free connection"),
            Err(_) => check.failing("no answer"),
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}
