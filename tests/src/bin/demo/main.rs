//! The first thing that a newcomer sees: orders travel to points and notifications, one message dies and comes back, and
//! the tables prove it. Called by `cargo dev demo` with everything up.

mod letters;
mod show;

use std::time::{Duration, Instant};

use anyhow::{bail, ensure};
use sqlx::PgPool;
use uuid::Uuid;
use waybill_testkit::Topics;
use waybill_testkit::jwt::Issuer;
use waybill_tests::Client;
use waybill_tests::invariants::{self, Pools};
use waybill_tests::status::Status;
use waybill_tests::system::seed_products;

/// The story: sku, quantity, payment method.
const ORDERS: [(&str, u32, &str); 6] = [
    ("TEA-1", 2, "ON_DELIVERY"),
    ("CUP-1", 1, "ON_DELIVERY"),
    ("POT-1", 1, "ON_DELIVERY"),
    ("TEA-1", 5, "ON_DELIVERY"),
    ("CUP-1", 2, "CARD"),
    ("POT-1", 2, "ON_DELIVERY"),
];
const PATIENCE: Duration = Duration::from_secs(60);

struct Story {
    status: Status,
    pools: Pools,
    topics: Topics,
    /// Orders of this run, in the order of placing.
    orders: Vec<Uuid>,
    traced: Uuid,
    trace_id: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let status = Status::read()?;
    let pools = Pools {
        orders: PgPool::connect(&status.database.orders).await?,
        points: PgPool::connect(&status.database.points).await?,
        notifications: PgPool::connect(&status.database.notifications).await?,
        console: PgPool::connect(&status.database.console).await?,
    };
    seed_products(&pools.orders).await?;
    let topics = Topics::existing(&status.topic_prefix, &status.kafka.bootstrap);
    let trace_id = Uuid::new_v4().simple().to_string();
    let mut story = Story { status, pools, topics, orders: Vec::new(), traced: Uuid::nil(), trace_id };
    story.place().await?;
    let placed = Instant::now();
    story.settle().await?;
    println!("Everything arrived {} ms after the last order was placed.\n", placed.elapsed().as_millis());
    story.show_orders().await?;
    story.show_outbox().await?;
    let records = story.show_topics().await?;
    story.show_ledger().await?;
    story.show_notifications().await?;
    story.show_trace(&records).await?;
    story.dead_letter().await?;
    story.show_invariants().await?;
    Ok(())
}

impl Story {
    async fn place(&mut self) -> anyhow::Result<()> {
        let issuer = Issuer::open(&self.status.jwt_dir)?;
        let base = self.status.http("order")?.to_owned();
        let traceparent = format!("00-{}-{}-01", self.trace_id, &Uuid::new_v4().simple().to_string()[..16]);
        let customers = [Uuid::now_v7(), Uuid::now_v7()];
        for (n, (sku, quantity, method)) in ORDERS.into_iter().enumerate() {
            let customer = customers[n % customers.len()];
            let client = Client::new(&base, customer, issuer.token(customer, "customer"))?;
            let key = Uuid::new_v4().to_string();
            let trace = (n == 0).then_some(traceparent.as_str());
            let answer = client.place(&key, sku, quantity, method, trace).await?;
            ensure!(answer.status == 201 && !answer.replayed, "an order was refused: {answer:?}");
            self.orders.push(answer.id()?);
            if n == 0 {
                self.traced = answer.id()?;
                let again = client.place(&key, sku, quantity, method, None).await?;
                ensure!(
                    again.replayed && again.id()? == self.traced,
                    "a repeated request made a second order: {again:?}"
                );
            }
        }
        println!(
            "{} orders placed; the first was sent twice under one idempotency key and is there once.",
            ORDERS.len()
        );
        Ok(())
    }

    async fn settle(&self) -> anyhow::Result<()> {
        let started = Instant::now();
        loop {
            let waiting = invariants::waiting(&self.pools).await?;
            if waiting.is_empty() {
                return Ok(());
            }
            if started.elapsed() > PATIENCE {
                bail!("still on the way after {PATIENCE:?}:\n  {}", waiting.join("\n  "));
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    }

    async fn show_invariants(&self) -> anyhow::Result<()> {
        let findings = invariants::check(&self.pools).await?;
        let rows = findings.iter().map(|f| {
            let verdict = if f.broken.is_empty() {
                "true".to_owned()
            } else {
                format!("BROKEN: {}", f.broken.join(", "))
            };
            vec![f.rule.to_owned(), verdict]
        });
        show::show("Invariants, over everything in the databases", &["rule", "holds"], rows);
        let broken = findings.iter().filter(|f| !f.broken.is_empty()).count();
        ensure!(broken == 0, "{broken} invariants do not hold");
        Ok(())
    }
}
