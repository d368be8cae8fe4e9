//! The gate before the database.

use std::time::Duration;

use axum::response::IntoResponse;
use futures::future::join_all;
use sqlx::postgres::PgPoolOptions;
use waybill_service::gate::{Config, Gate};
use waybill_testkit::{Database, eventually};

#[tokio::test]
async fn beyond_the_queue_nobody_waits() {
    let database = Database::create(&[]).await;
    let options = PgPoolOptions::new().max_connections(1).acquire_timeout(Duration::from_secs(30));
    let gate =
        Gate::new(options.connect(&database.url).await.expect("pool"), &Config { database_max_waiting: 3 });
    let held = gate.acquire().await.expect("connection");
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let gate = gate.clone();
            tokio::spawn(async move { gate.acquire().await.map(drop) })
        })
        .collect();
    eventually(async || if gate.check().is_err() { Ok(()) } else { Err("still open") }).await;
    assert!(matches!(gate.acquire().await, Err(sqlx::Error::PoolTimedOut)));
    // Each refusal is a little deeper.
    let mut last = String::new();
    for _ in 0..40 {
        let answer = gate.check().expect_err("full").into_response();
        assert_eq!(answer.status(), 503);
        last = answer.headers()["retry-after"].to_str().expect("text").to_owned();
    }
    assert_eq!(last, "10");
    // Whoever gives up leaves the queue.
    waiting[0].abort();
    eventually(async || gate.check().map_err(|_| "still full")).await;
    drop(held);
    for waited in join_all(waiting).await.into_iter().skip(1) {
        waited.expect("runs").expect("connection");
    }
}
