//! The real binary: its verbs, its signals, and what it tells about itself.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use waybill_testkit::jwt::Issuer;
use waybill_testkit::process::{Process, free_address};
use waybill_testkit::{Database, Topics, eventually};

use crate::fixture::{order, points};

const BINARY: &str = "waybill-notification";

#[tokio::test]
async fn it_migrates_serves_tells_and_stops_at_a_signal() {
    let (database, issuer) = (Database::create(&[]).await, Issuer::new());
    let topics = Topics::create(&["orders.v1", "points.v1"], 1).await;
    let folder = tempfile::tempdir().expect("folder");
    let (api, metrics) = (free_address(), free_address());
    let settings: Vec<(String, String)> = [
        ("DATABASE_URL", database.url.clone()),
        ("KAFKA_BOOTSTRAP", topics.bootstrap.clone()),
        ("TOPIC_PREFIX", topics.prefix.clone()),
        ("JWT_JWKS_FILE", issuer.jwks_file().display().to_string()),
        ("HTTP_LISTEN", api.to_string()),
        ("METRICS_LISTEN", metrics.to_string()),
        ("LOG_FORMAT", "json".to_owned()),
        ("JOBS", "purge-inbox,purge-tasks".to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into();
    let run = |verb: &str, log: &Path| Process::start(BINARY, &[verb], &settings, log);
    let log = |name: &str| folder.path().join(name);

    // In this order: not migrated, migrated, up.
    let mut early = run("serve", &log("early"));
    assert_eq!(early.ended().await, Some(1));
    assert!(early.log().contains("waybill-notification migrate"), "{}", early.log());
    assert_eq!(run("healthcheck", &log("probe")).ended().await, Some(1));
    assert_eq!(run("migrate", &log("migrate")).ended().await, Some(0));
    sqlx::raw_sql(
        "insert into messaging.processed_message (consumer_group, message_id, processed_at, outcome)
         values ('old', gen_random_uuid(), clock_timestamp() - interval '20 days', 'done');
         insert into messaging.task (id, kind, payload, status, run_at, updated_at)
         values ('01890000-0000-7000-8000-000000000000', 'old', '{}', 'done', clock_timestamp(),
                 clock_timestamp() - interval '8 days')",
    )
    .execute(&database.pool)
    .await
    .expect("an inbox row and a task past their time");
    let mut service = run("serve", &log("serve"));
    eventually(async || match run("healthcheck", &log("probe")).ended().await {
        Some(0) => Ok(()),
        code => Err((code, service.log())),
    })
    .await;
    eventually(async || {
        let old: i64 = sqlx::query_scalar(
            "select (select count(*) from messaging.processed_message where consumer_group = 'old')
                 + (select count(*) from messaging.task where kind = 'old')",
        )
        .fetch_one(&database.pool)
        .await
        .expect("count");
        if old == 0 { Ok(()) } else { Err(format!("the jobs did not purge: {}", service.log())) }
    })
    .await;

    let placed = order("placed");
    topics.produce(&placed).await;
    topics.produce(&points(&placed, "earned", 5)).await;
    let text = async || {
        let response = reqwest::get(format!("http://{metrics}/metrics")).await.map_err(|e| e.to_string())?;
        response.text().await.map_err(|e| e.to_string())
    };
    eventually(async || {
        let text = text().await?;
        let told = [
            "waybill_notification_sent_total{channel=\"log\",kind=\"placed\"} 1\n",
            "waybill_notification_sent_total{channel=\"log\",kind=\"earned\"} 1\n",
            "waybill_notification_oldest_unsent_age_seconds 0\n",
        ];
        if told.iter().all(|line| text.contains(line)) { Ok(()) } else { Err(text) }
    })
    .await;
    let lines = service.log();
    let line =
        lines.lines().find(|line| line.contains("waybill_notification::delivery")).expect("a delivery");
    let line: serde_json::Value = serde_json::from_str(line).expect("json");
    assert_eq!(line["order_id"], placed.order_id.to_string());
    assert_eq!((&line["kind"], &line["message"]), (&"placed".into(), &"notification sent".into()));

    let pid = service.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("runs");
    kill_process(pid, Signal::TERM).expect("signal");
    assert_eq!(service.ended().await, Some(0), "{}", service.log());
}
