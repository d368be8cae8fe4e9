//! `relay republish`.

use std::time::{Duration, Instant};

use clap::Parser;
use tokio_util::sync::CancellationToken;
use waybill_relay::republish::{self, Config, Report, republish};
use waybill_testkit::Record;

use crate::support::{World, id_of};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    config: Config,
}

fn config(world: &World, args: &[&str]) -> Config {
    let source = format!("order={}", world.database.url);
    let mut all = vec!["relay", "--source", &source, "--kafka-bootstrap", &world.topics.bootstrap];
    all.extend(["--topic-prefix", &world.topics.prefix]);
    all.extend(args);
    Cli::try_parse_from(all).expect("legal").config
}

async fn once_more(world: &World, args: &[&str]) -> Report {
    republish(config(world, args), CancellationToken::new()).await.expect("runs").remove(0)
}

async fn sent_times(world: &World) -> Vec<(i64, Option<chrono::DateTime<chrono::Utc>>)> {
    sqlx::query_as("select seq, sent_at from messaging.outbox order by seq")
        .fetch_all(world.pool())
        .await
        .expect("rows")
}

#[tokio::test(flavor = "multi_thread")]
async fn chosen_rows_come_once_more_as_they_were_and_nothing_is_written() {
    let world = World::new(&["orders.v1", "points.v1"]).await;
    for n in 0..30 {
        world.append("orders.v1", &format!("k{}", n % 3), format!("{n}").as_bytes()).await;
        world.append("points.v1", "p", b"p").await;
    }
    let relay = world.relay(&[]).await;
    world.wait_for_count("sent_at is null", 0).await;
    relay.stop().await;
    // Unsent rows are the relay's own.
    world.append("orders.v1", "k1", b"unsent").await;
    let before = sent_times(&world).await;

    let dry = once_more(&world, &["--key", "k1", "--dry-run"]).await;
    assert_eq!((dry.chosen, dry.acknowledged), (10, 0));
    assert_eq!(world.topics.read("orders.v1").await.len(), 30);
    let report = once_more(&world, &["--key", "k1", "--topic", "orders.v1", "--rate", "10000"]).await;
    assert_eq!((report.chosen, report.acknowledged, &report.refused), (10, 10, &None), "{report}");
    let records = world.topics.read("orders.v1").await;
    let k1: Vec<&Record> = records.iter().filter(|r| r.key_text() == "k1").collect();
    assert_eq!(k1.len(), 20);
    for (first, second) in k1[..10].iter().zip(&k1[10..]) {
        assert_eq!((first.key.clone(), first.value.clone()), (second.key.clone(), second.value.clone()));
        assert_eq!(first.headers, second.headers, "the same id, time and trace");
    }
    assert_eq!(sent_times(&world).await, before, "nothing is written");

    assert_eq!(once_more(&world, &["--type", "other", "--dry-run"]).await.chosen, 0);
    assert_eq!(once_more(&world, &["--since", "1h", "--dry-run"]).await.chosen, 60);
    assert_eq!(once_more(&world, &["--since", "2100-01-01T00:00:00Z", "--dry-run"]).await.chosen, 0);
    assert_eq!(
        once_more(&world, &["--all", "--topic", "points.v1", "--after", "30", "--dry-run"]).await.chosen,
        15
    );
    let refused = republish::run(config(&world, &[]), CancellationToken::new()).await;
    assert!(refused.expect_err("no filter").to_string().contains("--all"));
}

#[tokio::test(flavor = "multi_thread")]
async fn under_load_first_occurrences_stay_in_order_and_the_rate_is_kept() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&[]).await;
    world.write("orders.v1", 10, 20).await;
    world.wait_for_count("sent_at is null", 0).await;
    let started = Instant::now();
    let (report, ()) =
        tokio::join!(once_more(&world, &["--all", "--rate", "200"]), world.write("orders.v1", 10, 60));
    assert!(started.elapsed() >= Duration::from_millis(990), "200 rows at 200/s");
    assert_eq!(report.acknowledged, report.chosen);
    world.wait_for_count("sent_at is null", 0).await;
    let records = world.assert_order_and_completeness("orders.v1").await;
    assert_eq!(records.len() as u64, 800 + report.acknowledged);
    assert_eq!(relay.get(|s| &s.double_marks) + relay.get(|s| &s.inversions), 0);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interruption_ends_in_order_and_says_where_to_go_on() {
    let world = World::new(&["orders.v1"]).await;
    world.backlog("orders.v1", 10, 500).await;
    let relay = world.relay(&[]).await;
    world.wait_for_count("sent_at is null", 0).await;
    relay.stop().await;
    let stop = CancellationToken::new();
    let (reports, ()) =
        tokio::join!(republish(config(&world, &["--all", "--rate", "100"]), stop.clone()), async {
            world.wait_for_records("orders.v1", 520).await;
            stop.cancel();
        });
    let report = reports.expect("runs").remove(0);
    assert!(report.interrupted && report.acknowledged >= 20 && report.acknowledged < 500, "{report}");
    assert_eq!(report.up_to as u64, report.acknowledged, "every row up to there was acknowledged");
    let after = report.up_to.to_string();
    assert!(report.to_string().contains(&format!("--after {after}")));
    let rest = once_more(&world, &["--all", "--rate", "100000", "--after", &after]).await;
    assert_eq!(rest.acknowledged + report.acknowledged, 500);
    let records = world.topics.read("orders.v1").await;
    assert_eq!(records.len(), 1_000);
    let mut ids: Vec<_> = records.iter().map(id_of).collect();
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 500);
}
