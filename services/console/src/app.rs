//! The process: built from its settings, then run until it is told to stop.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use waybill_service::auth::Verifier;
use waybill_service::health::{self, Check, Health};
use waybill_service::jobs::Jobs;
use waybill_service::{ConfigError, http, metrics, postgres, shutdown};

use crate::api::{self, Api};
use crate::index::{self, Index, Link, Registry};
use crate::metrics::Metrics;
use crate::replays::{Runs, Sender};
use crate::services::Services;
use crate::{Config, NAME, Names, Settings, migrators};

/// Pause between two checks of database and index.
const CHECK_EVERY: Duration = Duration::from_secs(1);

/// Why the console does not start.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A setting cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The database cannot be reached.
    #[error(transparent)]
    Database(#[from] postgres::Error),
    /// A client of Kafka cannot be made.
    #[error("a Kafka client cannot be made")]
    Kafka(#[from] rdkafka::error::KafkaError),
    /// The client that asks the services cannot be made.
    #[error("the HTTP client cannot be made")]
    Http(#[from] reqwest::Error),
}

/// The console with its ports bound, not yet reading or serving.
#[derive(Debug)]
pub struct App {
    pool: PgPool,
    settings: Arc<Settings>,
    index: Index,
    registry: Registry,
    runs: Runs,
    jobs: Jobs,
    meters: Metrics,
    routes: Router,
    api: TcpListener,
    metrics: TcpListener,
    health: Health,
    local_addr: SocketAddr,
    metrics_addr: SocketAddr,
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
        let jobs = Jobs::new(pool.clone(), vec![index::purge(pool.clone())], &config.jobs)?;
        let api = http::bind("HTTP_LISTEN", config.http.http_listen).await?;
        let metrics = http::bind("METRICS_LISTEN", config.http.metrics_listen).await?;
        let address =
            |name, listener: &TcpListener| listener.local_addr().map_err(|e| ConfigError::invalid(name, e));
        let (local_addr, metrics_addr) =
            (address("HTTP_LISTEN", &api)?, address("METRICS_LISTEN", &metrics)?);
        let client = config.kafka.client_settings()?;
        let names = Names::new(config.kafka.topic_prefix);
        let settings = Arc::new(config.console);
        let meters = Metrics::new();
        // A record that is on its way when the lease ends must have arrived or failed by then.
        let sender = Sender::new(&client, settings.replay_lease / 2, settings.denied_headers.clone())?;
        let runs = Runs::new(sender);
        let registry = Registry::new(pool.clone(), &client, &names, &settings)?;
        let index = Index::new(pool.clone(), client, names.clone(), (*settings).clone(), meters.clone());
        let health = Health::new();
        let state = Api {
            pool: pool.clone(),
            verifier,
            names,
            settings: settings.clone(),
            services: Services::new(settings.services.clone())?,
            runs: runs.clone(),
        };
        let routes = api::router(state).merge(health::router(health.clone()));
        Ok(Self {
            pool,
            settings,
            index,
            registry,
            runs,
            jobs,
            meters,
            routes,
            api,
            metrics,
            health,
            local_addr,
            metrics_addr,
        })
    }

    /// Address of the API.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Address of `/metrics`.
    pub fn metrics_addr(&self) -> SocketAddr {
        self.metrics_addr
    }

    /// Reads and serves until `shutdown`; then takes no new request and no new batch, gives its runs back, and closes the
    /// database. After the grace period it returns whatever still runs.
    ///
    /// # Errors
    /// A part failed, or the grace period was not enough.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Self {
            pool, settings, index, registry, runs, jobs, meters, routes, api, metrics, health, ..
        } = self;
        // A part that fails ends the others in order, as a signal does.
        let stop = shutdown.child_token();
        let watched = watch(pool.clone(), index.link(), health.check("database"), health.check("index"));
        let watching = tokio::spawn(stop.clone().run_until_cancelled_owned(watched));
        tracing::info!(local_addr = %self.local_addr, metrics_addr = %self.metrics_addr, "console is up");
        let background = async {
            tokio::join!(
                runs.run(pool.clone(), settings, meters.clone(), stop.clone()),
                registry.run(stop.clone()),
                meters.clone().watch(pool.clone(), stop.clone()),
                jobs.run(stop.clone()),
            );
            Ok::<_, anyhow::Error>(())
        };
        let read = part(&stop, "index", index.run(stop.clone()));
        let serve = part(&stop, "API", http::serve(api, http::frame(routes), stop.clone()));
        let export = part(&stop, "metrics", http::serve(metrics, metrics::router(), stop.clone()));
        let background = part(&stop, "background", background);
        let parts = async {
            let (read, served, exported, done) = tokio::join!(read, serve, export, background);
            read.and(served).and(exported).and(done)
        };
        let too_late = async {
            stop.cancelled().await;
            tokio::time::sleep(shutdown::GRACE).await;
        };
        let ended = tokio::select! {
            ended = Box::pin(parts) => ended,
            () = too_late => Err(anyhow::anyhow!("what was running did not end within the grace period")),
        };
        watching.abort();
        pool.close().await;
        ended
    }
}

/// Runs one part; whatever way it ends, the others end too.
async fn part<E: Into<anyhow::Error>>(
    stop: &CancellationToken,
    name: &'static str,
    running: impl Future<Output = Result<(), E>>,
) -> anyhow::Result<()> {
    let ended = running.await.map_err(Into::into).with_context(|| format!("{name} failed"));
    stop.cancel();
    ended
}

/// Keeps the readiness: the database answers, and the index has its assignment and reaches a broker.
async fn watch(pool: PgPool, link: Link, database: Check, reading: Check) {
    loop {
        match sqlx::query_scalar!(r#"select 1 as "one!""#).fetch_one(&pool).await {
            Ok(_) => database.ok(),
            Err(sqlx::Error::PoolTimedOut) => database.failing("no free connection"),
            Err(_) => database.failing("no answer"),
        }
        match link.ready() {
            Ok(()) => reading.ok(),
            Err(reason) => reading.failing(reason),
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}
