//! The README's programs are the examples, byte for byte, and the examples do what the README says.

use std::process::Stdio;

use sqlx::PgPool;
use tokio::process::{Child, Command};
use uuid::Uuid;
use waybill_consumer::dead_letter_topic;
use waybill_event::{Event, OrderEvent};
use waybill_testkit::{Database, PATIENCE, Topics, eventually, process::binaries};

use crate::support::{Source, orders};

const README: &str = include_str!("../../README.md");

/// The first code block below a heading.
fn below(heading: &str) -> &'static str {
    let (_, section) = README.split_once(&format!("\n## {heading}\n")).unwrap();
    let (_, block) = section.split_once("```rust\n").unwrap();
    block.split_once("```").unwrap().0
}

#[test]
fn the_readmes_programs_are_the_examples() {
    let first = include_str!("../../examples/first_consumer.rs");
    assert_eq!(below("Your first consumer in 30 lines"), first);
    assert!(first.lines().count() <= 30, "{} lines", first.lines().count());
    assert_eq!(below("Test a handler without Kafka"), include_str!("../../examples/test_a_handler.rs"));
}

/// Builds an example and starts it with these settings alone.
async fn start(example: &str, settings: &[(&str, &str)]) -> Child {
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "waybill-consumer", "--example", example]);
    assert!(build.status().await.unwrap().success(), "{example} does not build");
    Command::new(binaries().join("examples").join(example))
        .env_clear()
        .envs(settings.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

/// By Ctrl-C, as the README says.
async fn interrupt(mut child: Child) {
    let id = child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &id]).status().await.unwrap().success());
    assert!(tokio::time::timeout(PATIENCE, child.wait()).await.unwrap().unwrap().success());
}

async fn until_rows(pool: &PgPool, query: &'static str, wanted: &[(Uuid, i64)]) {
    eventually(async || {
        let rows: Vec<(Uuid, i64)> =
            sqlx::query_as(query).fetch_all(pool).await.map_err(|error| error.to_string())?;
        if rows == wanted { Ok(()) } else { Err(format!("{rows:?}")) }
    })
    .await;
}

#[tokio::test]
async fn the_first_consumer_counts_what_comes_and_ends_with_ctrl_c() {
    let (database, topics) = (Database::create(&[]).await, Topics::create(&[OrderEvent::TOPIC], 2).await);
    let mut sent = orders(4);
    sent.iter_mut().skip(1).for_each(|order| order.customer_id = Uuid::from_u128(1));
    sent[0].customer_id = Uuid::from_u128(2);
    let source = Source::new(&topics);
    source.orders(0, &sent[..3]).await;
    let settings = [
        ("DATABASE_URL", database.url.as_str()),
        ("KAFKA_BOOTSTRAP", topics.bootstrap.as_str()),
        ("TOPIC_PREFIX", topics.prefix.as_str()),
    ];
    let seen = "select id, n::bigint from seen order by id";
    let first = start("first_consumer", &settings).await;
    until_rows(&database.pool, seen, &[(Uuid::from_u128(1), 2), (Uuid::from_u128(2), 1)]).await;
    interrupt(first).await;
    source.orders(1, &sent[3..]).await;
    let second = start("first_consumer", &settings).await;
    until_rows(&database.pool, seen, &[(Uuid::from_u128(1), 3), (Uuid::from_u128(2), 1)]).await;
    interrupt(second).await;
}

#[tokio::test]
async fn the_batch_example_takes_what_it_can_and_dead_letters_the_rest() {
    let (database, topics) = (Database::create(&[]).await, Topics::create(&[OrderEvent::TOPIC], 1).await);
    let dead_letters = dead_letter_topic("", OrderEvent::TOPIC, "revenue");
    topics.add(&dead_letters, 1, &[]).await;
    let mut sent = orders(3);
    sent[1].currency = "XXX".to_owned();
    Source::new(&topics).orders(0, &sent).await;
    let settings = [
        ("DATABASE_URL", database.url.as_str()),
        ("KAFKA_BOOTSTRAP", topics.bootstrap.as_str()),
        ("TOPIC_PREFIX", topics.prefix.as_str()),
    ];
    let running = start("batch", &settings).await;
    let revenue = "select order_id, paid from revenue order by order_id";
    until_rows(&database.pool, revenue, &[(sent[0].order_id, 1_000), (sent[2].order_id, 1_000)]).await;
    eventually(async || {
        let dead = topics.read(&dead_letters).await;
        if dead.len() == 1 { Ok(()) } else { Err(dead.len()) }
    })
    .await;
    interrupt(running).await;
}

#[tokio::test]
async fn the_handlers_test_runs_without_kafka() {
    let database = Database::create(&[]).await;
    for _ in 0..2 {
        let mut child = start("test_a_handler", &[("DATABASE_URL", database.url.as_str())]).await;
        assert!(child.wait().await.unwrap().success());
    }
}
