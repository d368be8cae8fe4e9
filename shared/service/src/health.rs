//! Liveness, readiness, and the probe that asks for them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use clap::Args;
use serde::Serialize;
use sqlx::PgPool;

/// Pause between two questions of [`keep`].
const ASK_EVERY: Duration = Duration::from_secs(1);

/// The named checks that readiness is made of. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Health {
    checks: Arc<Mutex<BTreeMap<&'static str, Option<String>>>>,
}

/// One named check. Starts as failing, with the reason "starting".
#[derive(Debug, Clone)]
pub struct Check {
    name: &'static str,
    health: Health,
}

#[derive(Serialize)]
struct Report {
    status: &'static str,
    checks: BTreeMap<&'static str, String>,
}

impl Health {
    /// No checks: ready.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a check, failing until it says otherwise.
    pub fn check(&self, name: &'static str) -> Check {
        let check = Check { name, health: self.clone() };
        check.failing("starting");
        check
    }

    /// Whether every check is well.
    pub fn is_ready(&self) -> bool {
        self.lock().values().all(Option::is_none)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<&'static str, Option<String>>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn report(&self) -> Report {
        let checks = self.lock();
        let ready = checks.values().all(Option::is_none);
        let text = |state: &Option<String>| state.clone().unwrap_or_else(|| "ok".to_owned());
        Report {
            status: if ready { "ready" } else { "not ready" },
            checks: checks.iter().map(|(name, state)| (*name, text(state))).collect(),
        }
    }
}

impl Check {
    /// All is well.
    pub fn ok(&self) {
        self.health.lock().insert(self.name, None);
    }

    /// Something is wrong. The reason is shown to whoever asks: no secrets, no addresses with passwords.
    pub fn failing(&self, reason: impl Into<String>) {
        self.health.lock().insert(self.name, Some(reason.into()));
    }
}

/// Asks again and again, for ever, and keeps the check by the answers.
pub async fn keep<F, E>(check: Check, ask: impl Fn() -> F)
where
    F: Future<Output = Result<(), E>>,
    E: Into<String>,
{
    loop {
        match ask().await {
            Ok(()) => check.ok(),
            Err(reason) => check.failing(reason),
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Keeps a check for ever: the database answers, and a connection is to be had.
pub async fn keep_database(check: Check, pool: PgPool) {
    let ask = || {
        let pool = pool.clone();
        async move {
            match sqlx::query_scalar!(r#"select 1 as "one!""#).fetch_one(&pool).await {
                Ok(_) => Ok(()),
                Err(sqlx::Error::PoolTimedOut) => Err("no free connection"),
                Err(_) => Err("no answer"),
            }
        }
    };
    keep(check, ask).await;
}

/// `/healthz` answers 200 while the process runs; `/readyz` 200 or 503 with every check by name.
pub fn router(health: Health) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .with_state(health)
}

async fn ready(State(health): State<Health>) -> (StatusCode, Json<Report>) {
    let report = health.report();
    let status = if report.status == "ready" { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(report))
}

/// Where to ask.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct ProbeConfig {
    /// Address that the running instance listens on.
    #[arg(long, env = "HTTP_LISTEN", default_value = "127.0.0.1:8080")]
    pub http_listen: std::net::SocketAddr,
    /// Path to ask for.
    #[arg(long, default_value = "/readyz")]
    pub path: String,
}

/// Ends well when a running instance answers 200; for containers without curl.
///
/// # Errors
/// No answer within 5 s, or another status; the message holds the answer.
pub async fn probe(config: ProbeConfig) -> anyhow::Result<()> {
    let mut address = config.http_listen;
    if address.ip().is_unspecified() {
        address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    let url = format!("http://{address}{}", config.path);
    let client = reqwest::Client::builder().no_proxy().timeout(Duration::from_secs(5)).build()?;
    let answer = client.get(&url).send().await?;
    let status = answer.status();
    let body = answer.text().await?;
    anyhow::ensure!(status.is_success(), "{url} answered {status}: {body}");
    println!("{body}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_ready_when_every_check_is() {
        let health = Health::new();
        let (database, broker) = (health.check("database"), health.check("broker"));
        assert!(!health.is_ready());
        database.ok();
        assert!(!health.is_ready());
        broker.ok();
        assert!(health.is_ready());
        database.failing("connection refused");
        assert_eq!(health.report().checks["database"], "connection refused");
    }
}
