//! A database, topics, and relays between them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use clap::Parser;
use sqlx::{PgExecutor, PgPool};
use testkit::{Database, Record, Topics, eventually};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_relay::app::Error;
use waybill_relay::metrics::Stats;
use waybill_relay::{App, Config};
use waybill_service::health::{ProbeConfig, probe};
use waybill_testkit as testkit;

pub(crate) struct World {
    pub(crate) database: Database,
    pub(crate) topics: Topics,
}

/// A relay that runs in this process.
pub(crate) struct Relay {
    pub(crate) stats: Vec<Arc<Stats>>,
    pub(crate) address: std::net::SocketAddr,
    stop: CancellationToken,
    task: JoinHandle<Result<(), Error>>,
}

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    config: Config,
}

/// Waits until a comparison holds.
pub(crate) async fn becomes<T: PartialEq + std::fmt::Debug>(expected: T, mut seen: impl AsyncFnMut() -> T) {
    eventually(async || {
        let value = seen().await;
        if value == expected { Ok(()) } else { Err(format!("{value:?} instead of {expected:?}")) }
    })
    .await;
}

impl World {
    pub(crate) async fn new(topics: &[&str]) -> Self {
        let database = Database::create(&[waybill_outbox::migrator()]).await;
        Self { database, topics: Topics::create(topics, 4).await }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.database.pool
    }

    pub(crate) async fn relay(&self, settings: &[&str]) -> Relay {
        self.relay_of(&[("order", &self.database)], &self.topics.bootstrap, settings).await
    }

    pub(crate) async fn relay_of(
        &self,
        sources: &[(&str, &Database)],
        bootstrap: &str,
        settings: &[&str],
    ) -> Relay {
        let urls: Vec<(&str, &str)> = sources.iter().map(|(name, db)| (*name, db.url.as_str())).collect();
        self.relay_at(&urls, bootstrap, settings).await
    }

    /// A relay whose sources are reached at given URLs.
    pub(crate) async fn relay_at(&self, urls: &[(&str, &str)], bootstrap: &str, settings: &[&str]) -> Relay {
        let config = self.config(urls, bootstrap, settings);
        let app = App::build(config).await.expect("relay is built");
        let address = app.local_addr().expect("bound");
        let stats = app.stats().iter().map(|(_, stats)| stats.clone()).collect();
        let stop = CancellationToken::new();
        let task = tokio::spawn(app.run(stop.clone()));
        Relay { stats, address, stop, task }
    }

    fn config(&self, sources: &[(&str, &str)], bootstrap: &str, settings: &[&str]) -> Config {
        let mut args = vec!["relay", "--http-listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"];
        args.extend(["--kafka-bootstrap", bootstrap, "--topic-prefix", &self.topics.prefix]);
        args.extend(settings);
        let sources = sources.iter().map(|(name, url)| format!("--source={name}={url}"));
        let sources: Vec<String> = sources.collect();
        args.extend(sources.iter().map(String::as_str));
        Cli::try_parse_from(args).expect("settings are legal").config
    }

    /// Appends a row as a writer would.
    pub(crate) async fn append(&self, topic: &str, key: &str, payload: &[u8]) -> i64 {
        append(self.pool(), &self.topics.name(topic), key, payload).await
    }

    /// Appends `each` rows to every one of `keys` keys, all keys at once, each key's rows one after the other.
    pub(crate) async fn write(&self, topic: &str, keys: usize, each: usize) {
        let name = self.topics.name(topic);
        let writers = (0..keys).map(|key| {
            let (pool, name) = (self.pool().clone(), name.clone());
            tokio::spawn(async move {
                for n in 0..each {
                    append(&pool, &name, &format!("key-{key}"), n.to_string().as_bytes()).await;
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("writes");
        }
    }

    pub(crate) async fn count(&self, condition: &str) -> i64 {
        let statement = format!("select count(*) from messaging.outbox where {condition}");
        sqlx::query_scalar(sqlx::AssertSqlSafe(statement)).fetch_one(self.pool()).await.expect("counts")
    }

    pub(crate) async fn wait_for_count(&self, condition: &str, expected: i64) {
        becomes(expected, async || self.count(condition).await).await;
    }

    /// Waits until the topic holds at least `expected` different rows of the outbox.
    pub(crate) async fn wait_for_published(&self, topic: &str, expected: usize) {
        eventually(async || {
            let records = self.topics.read(topic).await;
            let ids: HashSet<_> = records.iter().map(id_of).collect();
            if ids.len() >= expected { Ok(()) } else { Err(ids.len()) }
        })
        .await;
    }

    /// Waits until the topic holds at least `expected` records.
    pub(crate) async fn wait_for_records(&self, topic: &str, expected: usize) {
        becomes(true, async || self.topics.read(topic).await.len() >= expected).await;
    }

    /// A backlog of `rows` rows over `keys` keys, in one statement.
    pub(crate) async fn backlog(&self, topic: &str, keys: i32, rows: i32) {
        sqlx::query(
            "select count(messaging.append(gen_random_uuid(), 'order', 'key-' || n % $2, 't', $1, '\\x00'))
             from generate_series(1, $3) n",
        )
        .bind(self.topics.name(topic))
        .bind(keys)
        .bind(rows)
        .execute(self.pool())
        .await
        .expect("appends");
    }

    /// Every row is on the topic, and the first occurrences of each key's rows are in seq order.
    pub(crate) async fn assert_order_and_completeness(&self, topic: &str) -> Vec<Record> {
        let rows = sqlx::query!(
            "select id, seq from messaging.outbox where topic = $1 order by seq",
            self.topics.name(topic)
        )
        .fetch_all(self.pool())
        .await
        .expect("rows");
        let seqs: HashMap<Uuid, i64> = rows.iter().map(|row| (row.id, row.seq)).collect();
        let records = self.topics.read(topic).await;
        let mut seen = HashSet::new();
        let mut last: HashMap<String, i64> = HashMap::new();
        for record in &records {
            let id = id_of(record);
            if !seen.insert(id) {
                continue;
            }
            let seq = seqs[&id];
            let before = last.insert(record.key_text(), seq).unwrap_or(0);
            assert!(before < seq, "key {}: row {seq} after row {before}", record.key_text());
        }
        assert_eq!(seen.len(), rows.len(), "no row is lost");
        records
    }
}

/// Bytes that do not compress.
pub(crate) fn noise(len: usize) -> Vec<u8> {
    std::iter::repeat_with(rand::random::<u8>).take(len).collect()
}

pub(crate) fn id_of(record: &Record) -> Uuid {
    record.header("ce_id").expect("ce_id").parse().expect("UUID")
}

pub(crate) async fn append(executor: impl PgExecutor<'_>, topic: &str, key: &str, payload: &[u8]) -> i64 {
    sqlx::query_scalar!(
        r#"select messaging.append($1, 'order', $2, 'waybill.order.placed', $3, $4, max_bytes => 10000000) as "seq!""#,
        Uuid::now_v7(),
        key,
        topic,
        payload,
    )
    .fetch_one(executor)
    .await
    .expect("appends")
}

impl Relay {
    pub(crate) fn get(&self, figure: impl Fn(&Stats) -> &AtomicU64) -> u64 {
        self.stats.iter().map(|stats| figure(stats).load(Relaxed)).sum()
    }

    pub(crate) async fn wait_for(&self, figure: impl Fn(&Stats) -> &AtomicU64, expected: u64) {
        becomes(expected, async || self.get(&figure)).await;
    }

    /// Whether it is ready, else why not.
    pub(crate) async fn ready(&self) -> Result<(), String> {
        let config = ProbeConfig { http_listen: self.address, path: "/readyz".to_owned() };
        probe(config).await.map_err(|e| e.to_string())
    }

    /// The orderly end.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("no panic").expect("ends in order");
    }

    /// No orderly end: nothing is flushed, marked or released.
    pub(crate) async fn kill(self) {
        self.task.abort();
        assert!(self.task.await.expect_err("aborted").is_cancelled());
    }
}
