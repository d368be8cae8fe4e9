//! All sources of a process, and its two HTTP ports.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::routing::get;
use axum::{Json, Router};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use waybill_service::health::{self, Health};
use waybill_service::{ConfigError, http, metrics as prometheus};

use crate::config::Config;
use crate::metrics::{self, Stats};
use crate::source::{self, Pump, Readiness, Setup};

/// Why the relay cannot start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A source ended although nobody asked it to.
    #[error("source {name:?} ended")]
    Source {
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: source::Error,
    },
    /// A port failed.
    #[error("HTTP server ended")]
    Http(#[from] std::io::Error),
    /// A bug.
    #[error("a task of the relay panicked")]
    Task(#[from] tokio::task::JoinError),
}

/// A relay that is bound and has connected to nothing yet.
#[derive(Debug)]
pub struct App {
    pumps: Vec<(String, Pump)>,
    stats: Vec<(String, Arc<Stats>)>,
    health: Health,
    listener: TcpListener,
    metrics: TcpListener,
}

impl App {
    /// Checks the settings and binds the ports. Databases and brokers may come later: readiness says whether they
    /// did.
    ///
    /// # Errors
    /// [`Error::Config`], [`Error::Source`].
    pub async fn build(config: Config) -> Result<Self, Error> {
        let databases = config.sources.parse()?;
        config.tuning.check()?;
        let kafka = config.kafka.client_settings()?;
        let listener = http::bind("HTTP_LISTEN", config.http_listen).await?;
        let metrics = http::bind("METRICS_LISTEN", config.metrics_listen).await?;
        let health = Health::new();
        let names: Vec<&str> = databases.iter().map(|d| d.name.as_str()).collect();
        let ready = Readiness::new(health.check("databases"), names.iter().copied());
        let brokers = Readiness::new(health.check("kafka"), names.iter().copied());
        let instance = config.tuning.instance();
        let (mut pumps, mut stats) = (Vec::new(), Vec::new());
        for database in databases {
            let name = database.name.clone();
            let figures = Arc::new(Stats::default());
            let setup = Setup {
                database,
                kafka: kafka.clone(),
                prefix: config.kafka.topic_prefix.clone(),
                tuning: config.tuning.clone(),
                instance: instance.clone(),
                stats: figures.clone(),
                databases: ready.clone(),
                brokers: brokers.clone(),
            };
            let pump = Pump::new(setup).map_err(|source| Error::Source { name: name.clone(), source })?;
            pumps.push((name.clone(), pump));
            stats.push((name, figures));
        }
        metrics::observe(&stats);
        tracing::info!(instance, sources = stats.len(), "relay is built");
        Ok(Self { pumps, stats, health, listener, metrics })
    }

    /// Address of `/healthz`, `/readyz` and `/status`.
    ///
    /// # Errors
    /// The socket is gone.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Figures of the sources by name.
    pub fn stats(&self) -> &[(String, Arc<Stats>)] {
        &self.stats
    }

    /// Readiness of the process.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Relays until `shutdown`; then every source ends in order, and the ports close last. When one source ends by
    /// itself, the others end in order too.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let stop = shutdown.child_token();
        let closed = CancellationToken::new();
        let mut servers = JoinSet::new();
        let routes = health::router(self.health).merge(status(self.stats));
        servers.spawn(http::serve(self.listener, routes, closed.clone()));
        servers.spawn(http::serve(self.metrics, prometheus::router(), closed.clone()));
        let mut sources = JoinSet::new();
        for (name, pump) in self.pumps {
            let stop = stop.clone();
            sources.spawn(async move {
                let result = Box::pin(pump.run(stop.clone())).await;
                stop.cancel();
                result.map_err(|source| Error::Source { name, source })
            });
        }
        let mut result = Ok(());
        while let Some(ended) = sources.join_next().await {
            // The first failure is the cause of the others' end.
            result = result.and(ended.map_err(Error::from).flatten());
        }
        closed.cancel();
        while let Some(ended) = servers.join_next().await {
            result = result.and(ended.map_err(Error::from).and_then(|served| Ok(served?)));
        }
        result
    }
}

/// `GET /status`: figures of every source, paused topics with the broker's reason included.
fn status(stats: Vec<(String, Arc<Stats>)>) -> Router {
    let answer = move || {
        let all: BTreeMap<_, _> = stats.iter().map(|(name, s)| (name.clone(), s.snapshot())).collect();
        async move { Json(all) }
    };
    Router::new().route("/status", get(answer))
}
