use waybill_order::idempotency::purge;
use waybill_testkit::eventually;

use crate::app::{TestApp, order, send};

async fn keys(app: &TestApp) -> i64 {
    app.count("idempotency_key").await
}

#[tokio::test]
async fn the_purge_deletes_every_expired_key_and_no_other() {
    let app = TestApp::start_with(&["--job", purge::NAME]).await;
    // It has run once, on nothing, and is due again: now there is more than one step of work.
    app.execute(
        "insert into idempotency_key
            (principal, method, route, key, fingerprint, status, body, created_at, expires_at)
         select gen_random_uuid(), 'POST', '/v1/orders', 'k' || n, sha256('x'), 201, 'x', now() - interval '16 days',
            now() - interval '1 day'
         from generate_series(1, 2500) n",
    )
    .await;
    app.place("young", &order()).await.placed();
    eventually(async || {
        app.execute(
            "update messaging.job_lease set last_success_at = messaging.now() - interval '2 h'
             where expires_at <= messaging.now()",
        )
        .await;
        // The runner looks once a minute at an hourly job; a restarted one looks at once.
        let again = crate::app::config(&app.database.url, &app.issuer, &["--job", purge::NAME]);
        let second = waybill_order::App::build(again).await.expect("builds");
        let stop = tokio_util::sync::CancellationToken::new();
        let running = tokio::spawn(second.run(stop.clone()));
        let left = eventually_few(&app).await;
        stop.cancel();
        running.await.expect("runs").expect("ends well");
        if left == 1 { Ok(()) } else { Err(left) }
    })
    .await;
    assert!(app.place("young", &order()).await.is_replay());
    let text = send(app.client.get(&app.metrics)).await.text;
    for metric in
        ["job_last_success_timestamp_seconds{job=", "job_runs_total{job=", "job_interval_seconds{job="]
    {
        assert!(text.contains(&format!("{metric}\"{}\"", purge::NAME)), "{metric}: {text}");
    }
}

/// Looks for a while at how many keys are left.
async fn eventually_few(app: &TestApp) -> i64 {
    let mut left = keys(app).await;
    for _ in 0..50 {
        if left == 1 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        left = keys(app).await;
    }
    left
}

#[tokio::test]
async fn the_purge_is_off_until_it_is_named() {
    let app = TestApp::start().await;
    app.place("old", &order()).await.placed();
    app.execute("update idempotency_key set expires_at = now() - interval '1 day'").await;
    let claimed: i64 = sqlx::query_scalar(
        "select count(*) from messaging.job_lease where owner is not null or last_success_at is not null",
    )
    .fetch_one(&app.database.pool)
    .await
    .unwrap();
    assert_eq!((claimed, keys(&app).await), (0, 1));
}

#[tokio::test]
async fn an_unknown_job_is_refused_at_the_start() {
    let app = TestApp::start().await;
    let config = crate::app::config(&app.database.url, &app.issuer, &["--job", "purge-everything"]);
    let message = waybill_order::App::build(config).await.expect_err("unknown").to_string();
    assert!(message.contains("JOBS") && message.contains(purge::NAME), "{message}");
}
