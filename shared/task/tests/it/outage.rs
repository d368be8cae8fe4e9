//! A database that goes away.

use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use waybill_task::Settings;

use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn terminated_sessions_lose_no_task_and_double_no_effect() {
    let database = database().await;
    let workers = [0, 1].map(|_| {
        let settings = Settings {
            attempts: 1_000,
            lease: Duration::from_secs(3),
            heartbeat: Duration::from_secs(1),
            ..settings()
        };
        Beside::start(&database.pool, settings, Write)
    });
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.extend(enqueue(&database.pool, &vec![new().key("k"); 4]).await);
        ids.extend(enqueue(&database.pool, &vec![new(); 100]).await);
        // In the middle of it.
        waybill_testkit::eventually(async || match effects(&database.pool).await.len() {
            n if n + 90 >= ids.len() => Ok(()),
            n => Err(n),
        })
        .await;
        database.terminate_sessions().await;
        // The test's own pool has lost its connections, too.
        waybill_testkit::eventually(async || {
            sqlx::query("select 1").execute(&database.pool).await.map_err(|e| e.to_string())
        })
        .await;
    }
    waybill_testkit::eventually(async || {
        let open = "select count(*) from messaging.task where status <> 'done'";
        let open: i64 =
            sqlx::query_scalar(open).fetch_one(&database.pool).await.map_err(|e| e.to_string())?;
        if open == 0 { Ok(()) } else { Err(format!("{open} open")) }
    })
    .await;
    for worker in workers {
        worker.stop().await;
    }
    each_once(&database.pool, &ids).await;
}

/// Handlers that hold every connection of the service's pool.
#[tokio::test]
async fn an_empty_pool_keeps_no_heartbeat_and_no_claim_from_the_database() {
    let database = database().await;
    let pool = PgPoolOptions::new().max_connections(1).connect(&database.url).await.unwrap();
    let held = pool.acquire().await.unwrap();
    let handler = play(|_, _| Box::pin(async { Ok(()) }));
    let worker = Beside::start(&pool, settings(), handler);
    let id = enqueue_one(&database.pool, new()).await;
    until(&database.pool, id, "done").await;
    worker.stop().await;
    drop(held);
}
