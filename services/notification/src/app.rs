//! The process: built from its settings, then run until it is told to stop.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use axum::Router;
use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::middleware::map_response;
use axum::response::Response;
use sqlx::PgPool;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use waybill_consumer::{Consumer, Horizon, Settings, Status, Subscription};
use waybill_event::{Event, OrderEvent, PointEvent};
use waybill_service::auth::Verifier;
use waybill_service::health::{self, Check, Health};
use waybill_service::jobs::{Job, Jobs, Run};
use waybill_service::{ConfigError, http, metrics, postgres, shutdown};
use waybill_task::{Tasks, Worker};

use crate::notices::{self, OldestUnsent, OrderNotices, PointNotices};
use crate::{Config, GROUP, NAME};

/// Name of the job that purges the inbox, for `JOBS`.
const PURGE_INBOX: &str = "purge-inbox";
/// Name of the job that purges finished tasks.
const PURGE_TASKS: &str = "purge-tasks";
/// How long finished tasks are kept for operators to look at; the notification itself stays.
const TASKS_KEPT: Duration = Duration::from_secs(7 * 24 * 3600);
/// Pause between two checks of database and consumer.
const CHECK_EVERY: Duration = Duration::from_secs(1);

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
    #[error("database has no table {0}: run `waybill-notification migrate` first")]
    NotMigrated(&'static str),
    /// The database refused to say.
    #[error("database does not tell its tables")]
    Schema(#[source] sqlx::Error),
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
        require_tables(&pool).await?;
        let jobs = Jobs::new(
            pool.clone(),
            vec![purge_inbox(pool.clone()), purge_tasks(pool.clone())],
            &config.jobs,
        )?;
        let api = http::bind("HTTP_LISTEN", config.http.http_listen).await?;
        let metrics = http::bind("METRICS_LISTEN", config.http.metrics_listen).await?;
        let address =
            |name, listener: &TcpListener| listener.local_addr().map_err(|e| ConfigError::invalid(name, e));
        let (local_addr, metrics_addr) =
            (address("HTTP_LISTEN", &api)?, address("METRICS_LISTEN", &metrics)?);
        let tasks = Tasks::new();
        let worker = notices::worker(pool.clone(), &tasks, config.sending())?;
        let locale = config.notification_locale;
        let settings = Settings::new(config.kafka.client_settings()?, config.kafka.topic_prefix);
        let orders = OrderNotices::new(locale, tasks.clone());
        let points = PointNotices::new(locale, tasks);
        let consumer = Consumer::builder(pool.clone(), settings)
            .subscribe(Subscription::new(OrderEvent::TOPIC, GROUP).handler(orders))
            .subscribe(Subscription::new(PointEvent::TOPIC, GROUP).handler(points))
            .build()?;
        let health = Health::new();
        let routes = notices::http::router(pool.clone(), verifier)
            .layer(map_response(no_store))
            .merge(health::router(health.clone()));
        Ok(Self { pool, consumer, jobs, worker, routes, api, metrics, health, local_addr, metrics_addr })
    }

    /// Address of the API.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// Address of `/metrics`.
    pub fn metrics_addr(&self) -> SocketAddr {
        self.metrics_addr
    }

    /// Consumes and serves until `shutdown`; then takes no new request and no new batch, ends what runs, commits
    /// its offsets, and closes the database. What is not sent by then is left to other instances and the next start.
    /// After the grace period it returns whatever still runs.
    ///
    /// # Errors
    /// A part failed, or the grace period was not enough.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let Self { pool, consumer, jobs, routes, api, metrics, health, local_addr, metrics_addr, worker } =
            self;
        // A part that fails ends the others in order, as a signal does.
        let stop = shutdown.child_token();
        let watched =
            watch(pool.clone(), consumer.status(), health.check("database"), health.check("consumer"));
        let watching = tokio::spawn(stop.clone().run_until_cancelled_owned(watched));
        let oldest = OldestUnsent::new(pool.clone()).watch();
        let counting = tokio::spawn(stop.clone().run_until_cancelled_owned(oldest));
        tracing::info!(%local_addr, %metrics_addr, "notification service is up");
        // The worker goes on until the consumers have ended: what they commit last is sent if it comes through.
        let consumed = CancellationToken::new();
        let send = part(&stop, "task worker", worker.run(consumed.clone()));
        let consume = async {
            let ended = part(&stop, "consumer", consumer.run(stop.clone())).await;
            consumed.cancel();
            ended
        };
        let serve = part(&stop, "API", http::serve(api, http::frame(routes), stop.clone()));
        let export = part(&stop, "metrics", http::serve(metrics, metrics::router(), stop.clone()));
        let parts = async {
            let (consumed, sent, served, exported, ()) =
                tokio::join!(consume, send, serve, export, jobs.run(stop.clone()));
            consumed.and(sent).and(served).and(exported)
        };
        let too_late = async {
            stop.cancelled().await;
            tokio::time::sleep(shutdown::GRACE).await;
        };
        let ended = tokio::select! {
            ended = parts => ended,
            () = too_late => Err(anyhow::anyhow!("what was running did not end within the grace period")),
        };
        watching.abort();
        counting.abort();
        pool.close().await;
        ended
    }
}

/// Deletes inbox rows past their horizon, in bounded steps; hourly. When it is off, only the table grows.
fn purge_inbox(pool: PgPool) -> Job {
    Job::new(PURGE_INBOX, Duration::from_secs(3600), move |run: Run| {
        let pool = pool.clone();
        async move {
            let mut deleted = 0;
            while !run.is_stopped() {
                match waybill_consumer::purge(&pool, Horizon::default()).await? {
                    0 => break,
                    step => deleted += step,
                }
            }
            Ok::<_, sqlx::Error>(deleted)
        }
    })
}

/// Deletes tasks that ended long ago, in bounded steps; hourly. When it is off, only the table grows.
fn purge_tasks(pool: PgPool) -> Job {
    Job::new(PURGE_TASKS, Duration::from_secs(3600), move |run: Run| {
        let pool = pool.clone();
        async move {
            let mut deleted = 0;
            while !run.is_stopped() {
                match waybill_task::operate::purge(&pool, TASKS_KEPT).await? {
                    0 => break,
                    step => deleted += step,
                }
            }
            Ok::<_, sqlx::Error>(deleted)
        }
    })
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

/// Answers are personal, and stale at once.
async fn no_store(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn require_tables(pool: &PgPool) -> Result<(), BuildError> {
    for table in ["messaging.processed_message", "messaging.job_lease", "messaging.task", "notification"] {
        let found = sqlx::query_scalar!(r#"select to_regclass($1) is not null as "found!""#, table);
        if !found.fetch_one(pool).await.map_err(BuildError::Schema)? {
            return Err(BuildError::NotMigrated(table));
        }
    }
    Ok(())
}

/// Keeps the readiness: the database answers, and the consumer has its assignment and reaches a broker.
async fn watch(pool: PgPool, consumer: Status, database: Check, assigned: Check) {
    loop {
        match sqlx::query_scalar!(r#"select 1 as "one!""#).fetch_one(&pool).await {
            Ok(_) => database.ok(),
            Err(sqlx::Error::PoolTimedOut) => database.failing("no free connection"),
            Err(_) => database.failing("no answer"),
        }
        match consumer.ready() {
            Ok(()) => assigned.ok(),
            Err(reason) => assigned.failing(reason),
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}
