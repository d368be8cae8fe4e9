//! Dead rows, and what an operator decides about them while relays run.

use clap::Parser;
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use waybill_relay::dead::{self, Report, Verb};
use waybill_relay::source::store::operate::Decision;

use crate::support::{World, becomes, noise};

/// Larger than the small topics here take, smaller than the producer takes.
const LARGE: usize = 50_000;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    config: dead::Config,
}

fn parse(world: &World, args: &[&str]) -> dead::Config {
    let source = format!("order={}", world.database.url);
    let mut all = vec!["relay"];
    all.extend(args);
    all.extend(["--source", &source]);
    if args[0] != "list" {
        all.extend(["--topic-prefix", &world.topics.prefix]);
    }
    Cli::try_parse_from(all).expect("legal").config
}

async fn decide(world: &World, args: &[&str]) -> Report {
    match parse(world, args).verb {
        Verb::Retry(choice) => dead::decide(choice, Decision::Retry).await,
        Verb::Skip(choice) => dead::decide(choice, Decision::Skip).await,
        Verb::List(_) => panic!("not a decision"),
    }
    .expect("answers")
}

async fn small_topic() -> World {
    let world = World::new(&[]).await;
    world.topics.add("orders.v1", 4, &[("max.message.bytes", "20000")]).await;
    world
}

/// The cure: the topic takes larger records.
async fn enlarge(world: &World) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &world.topics.bootstrap);
    let admin: AdminClient<DefaultClientContext> = config.create().expect("admin");
    let name = world.topics.name("orders.v1");
    let alter = AlterConfig::new(ResourceSpecifier::Topic(&name)).set("max.message.bytes", "1048576");
    for altered in admin.alter_configs(&[alter], &AdminOptions::new()).await.expect("answers") {
        altered.expect("altered");
    }
}

/// Payloads' first bytes of a key's records, first occurrences in the order of the topic.
async fn published(world: &World, key: &str) -> Vec<String> {
    let records = world.topics.read("orders.v1").await;
    let mut seen = std::collections::HashSet::new();
    let of_key = records.iter().filter(|r| r.key_text() == key && seen.insert(crate::support::id_of(r)));
    let text = |value: &[u8]| String::from_utf8_lossy(&value[..value.len().min(8)]).trim().to_owned();
    of_key.map(|r| text(r.value.as_deref().unwrap_or_default())).collect()
}

fn large(start: &str) -> Vec<u8> {
    let mut payload = format!("{start:8}").into_bytes();
    payload.extend(noise(LARGE));
    payload
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_rows_behind_a_poison_row_wait_alone_and_come_after_it_in_order() {
    let world = small_topic().await;
    world.append("orders.v1", "poison", &large("0")).await;
    let followers = "select count(messaging.append(gen_random_uuid(), 'order', 'poison', 't', $1, convert_to(n::text, 'UTF8')))
         from generate_series(1, 5000) n";
    sqlx::query(followers).bind(world.topics.name("orders.v1")).execute(world.pool()).await.expect("appends");
    let relay = world.relay(&["--relay-sample-interval", "100ms", "--relay-full-scan", "800ms"]).await;
    world.wait_for_count("dead_at is not null", 1).await;
    let started = std::time::Instant::now();
    world.write("orders.v1", 20, 5).await;
    world.wait_for_count("sent_at is not null", 100).await;
    println!("the others flowed within {:?}", started.elapsed());
    world.wait_for_count("held_at is not null", 5_000).await;
    becomes(true, async || {
        use std::sync::atomic::Ordering::Relaxed;
        let stats = &relay.stats[0];
        stats.held.load(Relaxed) == 5_000 && stats.oldest_held_millis.load(Relaxed) > 0
    })
    .await;

    enlarge(&world).await;
    // The key goes on being written.
    let (report, _) = tokio::join!(decide(&world, &["retry", "--key", "poison"]), async {
        for n in 5_001..5_021 {
            world.append("orders.v1", "poison", n.to_string().as_bytes()).await;
        }
    });
    assert!(report.is_complete() && report.done() == 1 && report.released() >= 5_000, "{report}");
    world.wait_for_count("sent_at is null", 0).await;
    let expected: Vec<String> = (0..5_021).map(|n| n.to_string()).collect();
    assert_eq!(published(&world, "poison").await, expected);
    assert_eq!((relay.get(|s| &s.inversions), relay.get(|s| &s.below_floor)), (0, 0));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_fails_again_lets_nothing_pass_and_a_skip_lets_the_followers_go() {
    let world = small_topic().await;
    let seq = world.append("orders.v1", "k", &large("0")).await.to_string();
    for n in 1..=5 {
        world.append("orders.v1", "k", n.to_string().as_bytes()).await;
    }
    let relay = world.relay(&[]).await;
    // Again and again, with a writer beside, whatever the relay is doing at the moment.
    for n in 6..12 {
        world.wait_for_count("dead_at is not null", 1).await;
        world.append("orders.v1", "k", n.to_string().as_bytes()).await;
        decide(&world, &["retry", &seq]).await;
    }
    world.wait_for_count("dead_at is not null", 1).await;
    world.wait_for_count("held_at is not null", 11).await;
    assert_eq!(published(&world, "k").await, Vec::<String>::new());
    assert_eq!(world.count("dead_at is not null and attempts >= 8").await, 1);

    let report = decide(&world, &["skip", "--key", "k", "--topic", "orders.v1"]).await;
    assert_eq!((report.done(), report.released()), (1, 11), "{report}");
    world.wait_for_count("sent_at is not null", 11).await;
    let expected: Vec<String> = (1..12).map(|n| n.to_string()).collect();
    assert_eq!(published(&world, "k").await, expected);
    assert_eq!(world.count("dead_at is not null and skipped_at is not null and sent_at is null").await, 1);
    let again = dead::run(parse(&world, &["skip", &seq])).await;
    assert!(again.expect_err("nothing is dead any more").to_string().contains("not everything"));
    assert_eq!((relay.get(|s| &s.inversions), relay.get(|s| &s.below_floor)), (0, 0));
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn under_the_policy_skip_a_key_goes_on_and_the_dead_row_stays_for_the_operator() {
    let world = small_topic().await;
    let relay = world.relay(&["--relay-dead-policy", "block,orders.v1=skip"]).await;
    world.append("orders.v1", "k", b"1").await;
    world.append("orders.v1", "k", &large("2")).await;
    world.append("orders.v1", "k", b"3").await;
    world.wait_for_count("sent_at is not null", 2).await;
    world.wait_for_count("dead_at is not null", 1).await;
    assert_eq!(published(&world, "k").await, ["1", "3"]);
    let blocked: i64 = sqlx::query_scalar("select count(*) from messaging.outbox_blocked")
        .fetch_one(world.pool())
        .await
        .expect("counts");
    assert_eq!((blocked, world.count("held_at is not null").await), (0, 0));

    enlarge(&world).await;
    let report = decide(&world, &["retry", "--all"]).await;
    assert!(report.to_string().contains("does not block its key"), "{report}");
    world.wait_for_count("sent_at is null", 0).await;
    assert_eq!(published(&world, "k").await, ["1", "3", "2"]);
    assert_eq!(relay.get(|s| &s.inversions), 0, "the operator's doing, not the relay's");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_with_two_dead_rows_is_let_go_up_to_the_second() {
    let world = small_topic().await;
    // The first died under the policy `skip`, the second blocks.
    let first = world.append("orders.v1", "k", &large("0")).await.to_string();
    let relay = world.relay(&["--relay-dead-policy", "skip"]).await;
    world.wait_for_count("dead_at is not null", 1).await;
    relay.stop().await;
    world.append("orders.v1", "k", b"1").await;
    let second = world.append("orders.v1", "k", &large("2")).await.to_string();
    world.append("orders.v1", "k", b"3").await;
    let relay = world.relay(&[]).await;
    world.wait_for_count("held_at is not null", 1).await;
    assert_eq!(published(&world, "k").await, ["1"]);

    // The first blocks as well when it dies again; between the two nothing waits.
    let report = decide(&world, &["retry", &first]).await;
    assert_eq!(report.released(), 0);
    world.wait_for_count("dead_at is not null", 2).await;
    world.append("orders.v1", "k", b"4").await;
    world.wait_for_count("held_at is not null", 2).await;
    assert_eq!(decide(&world, &["skip", &first]).await.released(), 0, "the second still blocks");
    assert_eq!(decide(&world, &["skip", &second]).await.released(), 2);
    world.wait_for_count("sent_at is not null", 3).await;
    assert_eq!(published(&world, "k").await, ["1", "3", "4"]);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_does_nothing_and_says_what_would_be_done() {
    let world = small_topic().await;
    let topic = world.topics.name("orders.v1");
    for n in 0..3 {
        world.append("orders.v1", &format!("k{n}"), b"x").await;
        world.append("orders.v1", &format!("k{n}"), b"behind").await;
    }
    sqlx::raw_sql(
        "update messaging.outbox set dead_at = now(), attempts = 2, last_error = 'too large' where payload = 'x';
         update messaging.outbox set held_at = now() where payload <> 'x';
         update messaging.outbox set created_at = now() - interval '20 days' where aggregateid = 'k0';
         insert into messaging.outbox_blocked (topic, key, seq, blocked_at)
         select topic, aggregateid, seq, now() from messaging.outbox where dead_at is not null;",
    )
    .execute(world.pool())
    .await
    .expect("prepares");
    let report = decide(&world, &["retry", "--all", "--dry-run"]).await;
    assert_eq!((report.done(), report.released()), (3, 3));
    let text = report.to_string();
    assert!(text.contains("would be retried") && text.contains("nothing was done"), "{text}");
    assert!(text.contains("consumers may not remember"), "the row of k0 is older than 14 days: {text}");
    assert_eq!(world.count("dead_at is not null").await, 3);

    let id: uuid::Uuid =
        sqlx::query_scalar("select id from messaging.outbox where aggregateid = 'k1' and payload = 'x'")
            .fetch_one(world.pool())
            .await
            .expect("id");
    let report = decide(&world, &["retry", &id.to_string(), "4711"]).await;
    assert!(
        !report.is_complete()
            && report.done() == 1
            && report.to_string().contains("no dead row has seq 4711")
    );
    assert_eq!(world.count("dead_at is not null").await, 2);
    let report = decide(&world, &["skip", "--key", "k2", "--topic", &topic]).await;
    assert_eq!((report.done(), report.released()), (1, 1), "a topic may be named with its prefix");
    dead::run(parse(&world, &["list", "--json"])).await.expect("lists");
    dead::run(parse(&world, &["list"])).await.expect("lists");

    let store = waybill_relay::config::Sources {
        sources: vec![format!("order={}", world.database.url).into()],
        ..Default::default()
    }
    .parse()
    .expect("legal")
    .remove(0)
    .store();
    let status = store.status().await.expect("status");
    assert_eq!((status.dead_rows, status.held, status.blocked.len(), status.blocked[0].held), (1, 1, 1, 1));
    let json = serde_json::to_value(&status).expect("JSON");
    for field in
        ["oldest_unsent_seconds", "oldest_held_seconds", "unsent", "leases", "blocked", "dead", "held"]
    {
        assert!(!json[field].is_null(), "{field}: {json}");
    }
    for wrong in [&["retry"][..], &["skip", "1", "--all"], &["retry", "x"]] {
        let mut args = vec!["relay"];
        args.extend(wrong);
        args.extend(["--source", "a=postgres://h/x"]);
        assert!(Cli::try_parse_from(args).is_err(), "{wrong:?}");
    }
}
