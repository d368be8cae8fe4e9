//! The pool.

use std::time::Duration;

use chrono::{DateTime, Utc};
use clap::Parser;
use sqlx::postgres::PgPoolOptions;
use waybill_service::postgres::{Config, begin};
use waybill_testkit::Database;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    database: Config,
}

fn config(arguments: &[&str]) -> Config {
    Cli::try_parse_from([&["test"], arguments].concat()).expect("arguments").database
}

#[tokio::test]
async fn a_cancelled_begin_leaves_no_transaction_behind() {
    let database = Database::create(&[]).await;
    let pool = PgPoolOptions::new().max_connections(2).connect(&database.url).await.expect("pool");
    for round in 0..100 {
        // Cut at every moment of the round trip, from before the first byte to after the answer.
        drop(tokio::time::timeout(Duration::from_micros(round * 10), begin(&pool)).await);
        let mut connection = pool.acquire().await.expect("connection");
        let mut times = Vec::<DateTime<Utc>>::new();
        for _ in 0..2 {
            // now() stands still inside a transaction.
            times.push(sqlx::query_scalar("select now()").fetch_one(&mut *connection).await.expect("time"));
        }
        assert_ne!(times[0], times[1], "round {round}: the pool handed out an open transaction");
    }
}

#[tokio::test]
async fn every_wait_on_the_server_is_bounded() {
    let database = Database::create(&[]).await;
    let pool = config(&["--database-url", &database.url, "--database-pool-size", "1"])
        .connect("test")
        .await
        .expect("pool");
    for (name, value) in
        [("statement_timeout", "5s"), ("lock_timeout", "2s"), ("idle_in_transaction_session_timeout", "10s")]
    {
        let set: String = sqlx::query_scalar("select current_setting($1)")
            .bind(name)
            .fetch_one(&pool)
            .await
            .expect("setting");
        assert_eq!(set, value, "{name}");
    }
}

#[tokio::test]
async fn an_unreachable_server_is_named_without_its_password() {
    let url = "postgres://someone:hunter2@127.0.0.1:1/nothing";
    let error = config(&["--database-url", url]).connect("test").await.expect_err("nobody listens");
    let text = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(text.contains("127.0.0.1:1") && text.contains("nothing") && !text.contains("hunter2"), "{text}");
}
