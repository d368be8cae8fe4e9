//! From a commit to the broker, to the ledger and to the customer, at a steady rate of orders.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer, StreamConsumer};
use rdkafka::message::{Headers, Message};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::{Quantiles, micros};
use crate::System;

/// What a run measured. All from the moment that the outbox row was written, which is just before its commit.
#[derive(Debug)]
pub struct Report {
    /// HTTP request of placing, as the client sees it.
    pub request: Quantiles,
    /// Until the relay marked the row: ack, and up to 5 ms until the mark.
    pub marked: Quantiles,
    /// Until a consumer of `orders.v1` outside of the services had the record.
    pub received: Quantiles,
    /// Until the ledger entry was written.
    pub ledger: Quantiles,
    /// Until the customer was told.
    pub told: Quantiles,
}

/// Places `rate` orders a second for `time`, after some that warm everything up.
///
/// # Errors
/// An order is refused, or never arrives.
pub async fn run(rate: u32, time: Duration) -> anyhow::Result<Report> {
    let system =
        System::start(&[("RUST_LOG", "warn"), ("RATE_LIMIT", "0"), ("OTEL_TRACES_SAMPLER_ARG", "0")]).await;
    place(&system, rate.min(50), Duration::from_secs(3)).await?;
    system.settled().await;
    let begun: chrono::DateTime<chrono::Utc> =
        sqlx::query_scalar("select clock_timestamp()").fetch_one(&system.orders.pool).await?;
    let received = tokio::spawn(receive(
        system.topics.bootstrap.clone(),
        system.topics.name("orders.v1"),
        begun,
        rate * time.as_secs() as u32,
    ));
    let request = place(&system, rate, time).await?;
    system.settled().await;
    let received = received.await??;
    let since = |a: &str, b: &str| format!("(extract(epoch from {b} - {a}) * 1000000)::bigint");
    let marked = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
        "select {} from messaging.outbox where created_at >= $1",
        since("created_at", "sent_at")
    )))
    .bind(begun)
    .fetch_all(&system.orders.pool)
    .await?;
    let written: Vec<(String, chrono::DateTime<chrono::Utc>)> =
        sqlx::query_as("select aggregateid, created_at from messaging.outbox where created_at >= $1")
            .bind(begun)
            .fetch_all(&system.orders.pool)
            .await?;
    let ledger = after(
        &system.points.pool,
        "select order_id::text, created_at from point_entry where kind = 'EARN'",
        &written,
    )
    .await?;
    let told = after(
        &system.notifications.pool,
        "select order_id::text, sent_at from notification where kind = 'placed'",
        &written,
    )
    .await?;
    Ok(Report {
        request: Quantiles::of(request),
        marked: Quantiles::of(micros(marked)),
        received: Quantiles::of(received),
        ledger: Quantiles::of(ledger),
        told: Quantiles::of(told),
    })
}

/// Both databases are of one server, so their clocks are one.
async fn after(
    pool: &sqlx::PgPool,
    query: &'static str,
    written: &[(String, chrono::DateTime<chrono::Utc>)],
) -> anyhow::Result<Vec<Duration>> {
    let rows: Vec<(String, chrono::DateTime<chrono::Utc>)> = sqlx::query_as(query).fetch_all(pool).await?;
    let reached: std::collections::HashMap<_, _> = rows.into_iter().collect();
    Ok(written.iter().filter_map(|(id, at)| (*reached.get(id)? - *at).to_std().ok()).collect())
}

async fn place(system: &System, rate: u32, time: Duration) -> anyhow::Result<Vec<Duration>> {
    let customers: Vec<_> = (0..20).map(|_| system.customer()).collect();
    let mut ticks = interval(Duration::from_secs(1) / rate);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut requests = tokio::task::JoinSet::new();
    for n in 0..rate as usize * time.as_secs() as usize {
        // Open model: the next order does not wait for the answer to the one before.
        ticks.tick().await;
        let customer = customers[n % customers.len()].clone();
        requests.spawn(async move {
            let started = Instant::now();
            let answer =
                customer.place(&uuid::Uuid::new_v4().to_string(), "TEA-1", 1, "ON_DELIVERY", None).await?;
            anyhow::ensure!(answer.status == 201, "{answer:?}");
            Ok::<_, anyhow::Error>(started.elapsed())
        });
    }
    requests.join_all().await.into_iter().collect()
}

async fn receive(
    bootstrap: String,
    topic: String,
    begun: chrono::DateTime<chrono::Utc>,
    count: u32,
) -> anyhow::Result<Vec<Duration>> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("group.id", topic.clone())
        .set("auto.offset.reset", "earliest");
    let consumer: StreamConsumer = config.create()?;
    consumer.subscribe(&[&topic])?;
    let mut ages = Vec::new();
    while ages.len() < count as usize {
        let message = tokio::time::timeout(Duration::from_secs(60), consumer.recv()).await??;
        let now = chrono::Utc::now();
        let header = message.headers().and_then(|h| h.iter().find(|h| h.key == "ce_time")?.value);
        let written = header.and_then(|v| waybill_event::time::parse(std::str::from_utf8(v).ok()?));
        if let Some(written) = written.filter(|at| *at >= begun) {
            ages.push((now - written).to_std().unwrap_or_default());
        }
    }
    Ok(ages)
}
