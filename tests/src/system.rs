//! The five real binaries with databases, topics and keys of their own.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use sqlx::PgPool;
use uuid::Uuid;
use waybill_testkit::jwt::Issuer;
use waybill_testkit::process::{Process, free_address};
use waybill_testkit::{Database, Topics, eventually};

use crate::client::Client;
use crate::invariants::{self, Pools};
use crate::operator::Operator;

/// The services, in the order in which they start.
pub const SERVICES: [&str; 5] = ["order", "relay", "point", "notification", "console"];
/// Every topic that the services write or read.
pub const TOPICS: [&str; 13] = [
    "orders.v1",
    "points.v1",
    "dlt.outcomes.v1",
    "orders.v1.point.dlt",
    "orders.v1.notification.dlt",
    "points.v1.notification.dlt",
    "orders.v1.point.retry.1s",
    "orders.v1.point.retry.10s",
    "orders.v1.point.retry.1m",
    "orders.v1.point.retry.10m",
    "orders.v1.point.replay",
    "orders.v1.notification.replay",
    "points.v1.notification.replay",
];
/// Products that tests order: sku and unit price.
pub const PRODUCTS: [(&str, i64); 3] = [("TEA-1", 4_500), ("CUP-1", 12_000), ("POT-1", 39_000)];

/// A whole Waybill; its processes end and its databases and topics go with this value.
#[derive(Debug)]
pub struct System {
    /// Database of the order service.
    pub orders: Database,
    /// Database of the point service.
    pub points: Database,
    /// Database of the notification service.
    pub notifications: Database,
    /// Database of the console.
    pub console: Database,
    /// Topics.
    pub topics: Topics,
    /// Issuer of tokens.
    pub issuer: Issuer,
    processes: HashMap<&'static str, Process>,
    addresses: HashMap<&'static str, (SocketAddr, SocketAddr)>,
    settings: Vec<(String, String)>,
    folder: tempfile::TempDir,
}

impl System {
    /// Databases, topics and products, but no process yet. `settings` are given to every process.
    ///
    /// # Panics
    /// When a part cannot be had; tests have no use for less.
    pub async fn prepare(settings: &[(&str, &str)]) -> Self {
        Self::prepare_with(Topics::none(), settings).await
    }

    /// As [`System::prepare`], on a broker of the caller's.
    ///
    /// # Panics
    /// When a part cannot be had.
    pub async fn prepare_on(bootstrap: &str, settings: &[(&str, &str)]) -> Self {
        Self::prepare_with(Topics::none_on(bootstrap), settings).await
    }

    async fn prepare_with(topics: Topics, settings: &[(&str, &str)]) -> Self {
        for topic in TOPICS {
            topics.add(topic, waybill_testkit::topics::PARTITIONS, &[]).await;
        }
        let system = Self {
            orders: Database::create(&[]).await,
            points: Database::create(&[]).await,
            notifications: Database::create(&[]).await,
            console: Database::create(&[]).await,
            topics,
            issuer: Issuer::new(),
            processes: HashMap::new(),
            addresses: SERVICES.into_iter().map(|s| (s, (free_address(), free_address()))).collect(),
            settings: settings.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
            folder: tempfile::tempdir().expect("temporary folder"),
        };
        for service in ["order", "point", "notification", "relay", "console"] {
            let (code, log) = system.command(service, &["migrate"], &[]).await;
            assert_eq!(code, Some(0), "{service} migrate:\n{log}");
        }
        seed_products(&system.orders.pool).await.expect("products");
        system
    }

    /// Everything up and ready.
    ///
    /// # Panics
    /// When a service does not become ready.
    pub async fn start(settings: &[(&str, &str)]) -> Self {
        Self::prepare(settings).await.up().await
    }

    /// Everything up and ready on a broker of the caller's.
    ///
    /// # Panics
    /// When a service does not become ready.
    pub async fn start_on(bootstrap: &str, settings: &[(&str, &str)]) -> Self {
        Self::prepare_on(bootstrap, settings).await.up().await
    }

    async fn up(self) -> Self {
        let mut system = self;
        for service in SERVICES {
            system.spawn(service, None);
        }
        for service in SERVICES {
            system.ready(service).await;
        }
        system
    }

    /// Starts a service; `crash_at` arms one of its crash points.
    pub fn spawn(&mut self, service: &'static str, crash_at: Option<&str>) {
        let mut settings = self.settings_of(service);
        settings.extend(crash_at.map(|point| ("WAYBILL_CRASH_AT".to_owned(), point.to_owned())));
        let process =
            Process::start(&format!("waybill-{service}"), &["serve"], &settings, &self.log_file(service));
        self.processes.insert(service, process);
    }

    /// Runs a service's binary to its end; its exit code and all that it wrote.
    pub async fn command(
        &self,
        service: &'static str,
        arguments: &[&str],
        extra: &[(&str, &str)],
    ) -> (Option<i32>, String) {
        let mut settings = self.settings_of(service);
        settings.retain(|(name, _)| !extra.iter().any(|(e, _)| e == name));
        settings.extend(extra.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
        let log = self.folder.path().join(format!("{service}-{}.log", Uuid::new_v4()));
        let mut process = Process::start(&format!("waybill-{service}"), arguments, &settings, &log);
        let code = process.ended().await;
        (code, process.log())
    }

    /// Waits until a service says that it is ready.
    ///
    /// # Panics
    /// When it ends or never becomes ready; with its log.
    pub async fn ready(&mut self, service: &'static str) {
        let url = format!("{}/readyz", self.http(service));
        let http = reqwest::Client::builder().no_proxy().build().expect("client");
        let process = self.processes.get_mut(service).expect("started");
        eventually(async || {
            assert!(process.is_running(), "{service} ended:\n{}", process.log());
            match http.get(&url).send().await {
                Ok(answer) if answer.status().is_success() => Ok(()),
                Ok(answer) => Err(format!("{service}: {}", answer.text().await.unwrap_or_default())),
                Err(error) => Err(format!("{service}: {error}\n{}", process.log())),
            }
        })
        .await;
    }

    /// The running process of a service.
    ///
    /// # Panics
    /// When it was never started.
    pub fn process(&mut self, service: &str) -> &mut Process {
        self.processes.get_mut(service).expect("started")
    }

    /// All that a service has logged, over restarts.
    pub fn log(&self, service: &str) -> String {
        std::fs::read_to_string(self.log_file(service)).unwrap_or_default()
    }

    /// Base URL of a service's API.
    pub fn http(&self, service: &str) -> String {
        format!("http://{}", self.addresses[service].0)
    }

    /// URL of a service's metrics.
    pub fn metrics(&self, service: &str) -> String {
        format!("http://{}/metrics", self.addresses[service].1)
    }

    /// A client of the order API for a fresh customer.
    ///
    /// # Panics
    /// When no HTTP client can be had.
    pub fn customer(&self) -> Client {
        let customer = Uuid::now_v7();
        let token = self.issuer.token(customer, "customer");
        Client::new(&self.http("order"), customer, token).expect("client")
    }

    /// An operator with these roles: `view`, `payload`, `act`.
    pub fn operator(&self, roles: &[&str]) -> Operator {
        Operator::new(&self.issuer, &self.http("console"), roles)
    }

    /// Pools of the four databases.
    pub fn pools(&self) -> Pools {
        Pools {
            orders: self.orders.pool.clone(),
            points: self.points.pool.clone(),
            notifications: self.notifications.pool.clone(),
            console: self.console.pool.clone(),
        }
    }

    /// Waits until nothing is on its way any more.
    ///
    /// # Panics
    /// When something stays; with what it is.
    pub async fn settled(&self) {
        let pools = self.pools();
        eventually(async || {
            let waiting = invariants::waiting(&pools).await.map_err(|e| vec![e.to_string()])?;
            if waiting.is_empty() { Ok(()) } else { Err(waiting) }
        })
        .await;
    }

    /// Fails with every invariant that does not hold.
    ///
    /// # Panics
    /// When one does not hold.
    pub async fn assert_invariants(&self) {
        let findings = invariants::check(&self.pools()).await.expect("databases answer");
        let broken: Vec<_> = findings.iter().filter(|f| !f.broken.is_empty()).collect();
        assert!(broken.is_empty(), "{broken:#?}");
    }

    fn log_file(&self, service: &str) -> PathBuf {
        self.folder.path().join(format!("{service}.log"))
    }

    fn settings_of(&self, service: &str) -> Vec<(String, String)> {
        let (http, metrics) = self.addresses[service];
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let mut settings = vec![
            set("HTTP_LISTEN", &http.to_string()),
            set("METRICS_LISTEN", &metrics.to_string()),
            set("KAFKA_BOOTSTRAP", &self.topics.bootstrap),
            set("TOPIC_PREFIX", &self.topics.prefix),
            set("JWT_JWKS_FILE", &self.issuer.jwks_file().display().to_string()),
            set("LOG_FORMAT", "json"),
            set("OTEL_TRACES_SAMPLER_ARG", "1"),
        ];
        match service {
            "order" => settings.push(set("DATABASE_URL", &self.orders.url)),
            "point" => settings.push(set("DATABASE_URL", &self.points.url)),
            "notification" => {
                settings.push(set("DATABASE_URL", &self.notifications.url));
                // What a crash leaves in the middle of a send is taken over while the tests wait.
                settings.push(set("NOTIFICATION_LEASE", "3s"));
            }
            "console" => {
                settings.push(set("DATABASE_URL", &self.console.url));
                let consumers = ["point", "notification"].map(|name| format!("{name}={}", self.http(name)));
                settings.push(set("CONSOLE_SERVICES", &consumers.join(",")));
                // What a killed console drove is taken over while the tests wait.
                settings.push(set("CONSOLE_REPLAY_LEASE", "2s"));
            }
            _ => settings
                .push(set("RELAY_SOURCES", &format!("order={},point={}", self.orders.url, self.points.url))),
        }
        settings.extend(self.settings.iter().cloned());
        settings
    }
}

/// Puts the products in, or brings their prices up to date.
///
/// # Errors
/// The database does not answer.
pub async fn seed_products(orders: &PgPool) -> sqlx::Result<()> {
    for (sku, price) in PRODUCTS {
        sqlx::query(
            "insert into product (sku, name, unit_price, currency) values ($1, $2, $3, 'KRW')
             on conflict (sku) do update set unit_price = excluded.unit_price",
        )
        .bind(sku)
        .bind(sku)
        .bind(price)
        .execute(orders)
        .await?;
    }
    Ok(())
}

/// Root of the workspace.
///
/// # Errors
/// The crate was moved.
pub fn root() -> anyhow::Result<&'static Path> {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().context("tests/ lies below the root")
}
