//! Rows that Kafka refuses, topics that are not there.

use std::collections::BTreeSet;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions};
use rdkafka::client::DefaultClientContext;
use waybill_testkit::Topics;

use crate::support::{World, becomes, noise};

#[tokio::test(flavor = "multi_thread")]
async fn a_row_too_large_for_its_topic_dies_and_blocks_its_key_alone() {
    let world = World::new(&[]).await;
    world.topics.add("orders.v1", 4, &[("max.message.bytes", "20000")]).await;
    world.append("orders.v1", "big", b"before").await;
    let dead = world.append("orders.v1", "big", &noise(50_000)).await;
    // Larger than the producer itself takes.
    let huge = world.append("orders.v1", "huge", &noise(2_000_000)).await;
    for n in 0..20 {
        world.append("orders.v1", "big", b"behind").await;
        world.append("orders.v1", "huge", b"behind").await;
        world.append("orders.v1", &format!("innocent-{n}"), &noise(2_000)).await;
    }
    let relay = world.relay(&["--relay-sample-interval", "50ms"]).await;
    world.wait_for_published("orders.v1", 21).await;
    world.wait_for_count("dead_at is not null", 2).await;
    world.wait_for_count("held_at is not null", 40).await;
    world.wait_for_count("sent_at is not null", 21).await;

    let rows = sqlx::query!(
        "select o.seq, o.attempts, o.last_error, b.key from messaging.outbox o
         join messaging.outbox_blocked b on b.seq = o.seq and b.topic = o.topic and b.key = o.aggregateid
         where o.dead_at is not null order by o.seq"
    )
    .fetch_all(world.pool())
    .await
    .expect("dead rows");
    assert_eq!(rows.iter().map(|r| r.seq).collect::<Vec<_>>(), [dead, huge]);
    assert_eq!(rows.iter().map(|r| r.key.as_str()).collect::<Vec<_>>(), ["big", "huge"]);
    assert!(
        rows.iter().all(|r| r.attempts == 2 && r.last_error.as_deref().is_some_and(|e| e.contains("large")))
    );

    // Rows that come later are held, and the others go on.
    world.append("orders.v1", "big", b"later").await;
    world.append("orders.v1", "innocent-0", b"later").await;
    world.wait_for_count("held_at is not null", 41).await;
    world.wait_for_count("sent_at is not null", 22).await;
    let keys: BTreeSet<String> = world.topics.read("orders.v1").await.iter().map(|r| r.key_text()).collect();
    assert!(!keys.contains("huge") && keys.contains("innocent-19"));
    let figure = || {
        let stats = &relay.stats[0];
        let load = |figure: &std::sync::atomic::AtomicI64| figure.load(std::sync::atomic::Ordering::Relaxed);
        (load(&stats.dead), load(&stats.blocked), load(&stats.unsent))
    };
    becomes((2, 2, 0), async || figure()).await;
    relay.ready().await.expect("a dead row never turns readiness off");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_topic_pauses_alone_kills_nothing_and_goes_on_when_it_appears() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&["--relay-topic-retry", "200ms"]).await;
    for n in 0..300 {
        world.append("points.v1", &format!("key-{}", n % 30), b"waits").await;
    }
    becomes(true, async || relay.stats[0].paused().contains_key(&world.topics.name("points.v1"))).await;
    world.write("orders.v1", 30, 10).await;
    world.wait_for_count("sent_at is not null", 300).await;
    relay.ready().await.expect("a paused topic does not turn readiness off");
    assert_eq!(world.count("dead_at is not null or held_at is not null or attempts > 0").await, 0);

    world.topics.add("points.v1", 4, &[]).await;
    world.wait_for_count("sent_at is not null", 600).await;
    world.assert_order_and_completeness("points.v1").await;
    assert!(relay.stats[0].paused().is_empty());
    assert_eq!(world.count("dead_at is not null").await, 0);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_is_deleted_pauses_and_goes_on_when_it_is_made_again() {
    let world = World::new(&["orders.v1", "points.v1"]).await;
    let relay = world.relay(&["--relay-topic-retry", "200ms"]).await;
    world.write("orders.v1", 20, 5).await;
    world.wait_for_count("sent_at is null", 0).await;

    delete(&world.topics, "orders.v1").await;
    world.write("orders.v1", 20, 5).await;
    becomes(true, async || relay.stats[0].paused().contains_key(&world.topics.name("orders.v1"))).await;
    world.write("points.v1", 20, 5).await;
    world.wait_for_count("sent_at is not null", 200).await;

    world.topics.add("orders.v1", 4, &[]).await;
    world.wait_for_count("sent_at is null", 0).await;
    assert_eq!(world.count("dead_at is not null or held_at is not null or attempts > 0").await, 0);
    assert_eq!(relay.get(|s| &s.inversions), 0);
    relay.stop().await;
}

async fn delete(topics: &Topics, name: &str) {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &topics.bootstrap);
    let admin: AdminClient<DefaultClientContext> = config.create().expect("admin");
    for deleted in admin.delete_topics(&[&topics.name(name)], &AdminOptions::new()).await.expect("answers") {
        deleted.expect("deleted");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_database_loses_nothing() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&[]).await;
    let writing = async {
        for n in 0..300 {
            world.append("orders.v1", &format!("key-{}", n % 10), b"x").await;
        }
    };
    writing.await;
    world.wait_for_published("orders.v1", 1).await;
    world.database.terminate_sessions().await;
    becomes(0, async || {
        // The test's own pool was cut off as well.
        sqlx::query_scalar!(r#"select count(*) as "n!" from messaging.outbox where sent_at is null"#)
            .fetch_one(world.pool())
            .await
            .unwrap_or(-1)
    })
    .await;
    world.assert_order_and_completeness("orders.v1").await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_standby_is_refused() {
    let world = World::new(&["orders.v1"]).await;
    world.append("orders.v1", "k", b"x").await;
    let name: String =
        sqlx::query_scalar("select current_database()").fetch_one(world.pool()).await.expect("name");
    // A stand-in for a standby: its own answer to the question that the relay asks.
    let shadow = format!(
        "create schema shadow;
         create function shadow.pg_is_in_recovery() returns boolean language sql as 'select true';
         alter database \"{name}\" set search_path = shadow, public, pg_catalog;"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(shadow)).execute(world.pool()).await.expect("shadows");
    let relay = world.relay(&[]).await;
    becomes(true, async || relay.ready().await.is_err_and(|e| e.contains("standby"))).await;
    assert_eq!(relay.get(|s| &s.published) + relay.get(|s| &s.buckets), 0);
    relay.stop().await;
}
