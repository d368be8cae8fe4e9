//! The floor: below it nothing unsent may ever appear, and it keeps the fetch fast.

use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use sqlx::PgPool;
use waybill_testkit::Database;

use crate::support::{World, append, becomes};

/// Floors rise often; each bucket is read from its very start about every second.
const EAGER: [&str; 4] = ["--relay-floor-interval", "30ms", "--relay-full-scan", "1s"];

/// One writer: transactions of all lengths, some with an xid long before they append, some rolled back.
async fn scribble(pool: PgPool, topic: String, writer: usize, seed: u64, until: Instant) {
    let mut random = StdRng::seed_from_u64(seed);
    while Instant::now() < until {
        let mut tx = pool.begin().await.expect("begins");
        if random.random_bool(0.5) {
            sqlx::query("select pg_current_xact_id()").execute(&mut *tx).await.expect("takes an id");
            tokio::time::sleep(Duration::from_millis(random.random_range(0..8))).await;
        }
        for _ in 0..random.random_range(1..4) {
            let key = format!("w{writer}-{}", random.random_range(0..40));
            append(&mut *tx, &topic, &key, b"x").await;
            if random.random_bool(0.3) {
                tokio::time::sleep(Duration::from_millis(random.random_range(0..30))).await;
            }
        }
        if random.random_bool(0.9) {
            tx.commit().await.expect("commits");
        } else {
            tx.rollback().await.expect("rolls back");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_writers_with_random_pauses_never_commit_below_a_floor() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&EAGER).await;
    let seed: u64 = rand::random();
    println!("seed {seed}");
    let until = Instant::now() + Duration::from_secs(10);
    let topic = world.topics.name("orders.v1");
    let writers = (0..16).map(|writer| {
        tokio::spawn(scribble(world.pool().clone(), topic.clone(), writer, seed ^ writer as u64, until))
    });
    let writers: Vec<_> = writers.collect();
    let (mut floors, mut last) = (0, 0);
    while Instant::now() < until {
        let floor = relay.get(|s| &s.floor);
        floors += u32::from(floor > last);
        last = last.max(floor);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for writer in writers {
        writer.await.expect("writes");
    }
    world.wait_for_count("sent_at is null", 0).await;
    world.assert_order_and_completeness("orders.v1").await;
    assert_eq!((relay.get(|s| &s.below_floor), relay.get(|s| &s.inversions)), (0, 0), "seed {seed}");
    println!("{} rows, {floors} floors, the last at {last}", relay.get(|s| &s.published));
    assert!(floors >= 5, "floors rose while the writers wrote: {floors}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_left_open_elsewhere_slows_the_floor_and_never_publishing() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&EAGER).await;
    world.write("orders.v1", 10, 5).await;
    becomes(true, async || relay.get(|s| &s.floor) >= 50).await;

    // A snapshot alone, without an id, holds nothing up.
    let mut snapshot = world.pool().begin().await.expect("begins");
    sqlx::raw_sql("set transaction isolation level repeatable read; select 1")
        .execute(&mut *snapshot)
        .await
        .expect("reads");
    world.write("orders.v1", 10, 5).await;
    becomes(true, async || relay.get(|s| &s.floor) >= 100).await;
    snapshot.rollback().await.expect("ends");

    // An id in another database of the cluster.
    let other = Database::create(&[waybill_outbox::migrator()]).await;
    let mut writer = other.pool.begin().await.expect("begins");
    sqlx::query("select pg_current_xact_id()").execute(&mut *writer).await.expect("takes an id");
    let floor = relay.get(|s| &s.floor);
    let started = Instant::now();
    world.write("orders.v1", 10, 20).await;
    world.wait_for_count("sent_at is null", 0).await;
    println!("published within {:?} of the first write", started.elapsed());
    assert!(relay.get(|s| &s.floor) <= floor.max(100) + 200, "no proof, no floor above what was proven");
    writer.rollback().await.expect("ends");
    becomes(true, async || relay.get(|s| &s.floor) >= 300).await;
    assert_eq!(relay.get(|s| &s.below_floor), 0);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_below_the_floor_is_found_by_the_full_scan_published_and_counted() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&EAGER).await;
    world.write("orders.v1", 10, 5).await;
    // Nothing in the product does this: an operator who calls a sent row unsent, behind the relay's back. A new
    // connection takes the floors away, and the row is then found without them: so more than once, if need be.
    let mut times = 0;
    while relay.get(|s| &s.below_floor) == 0 {
        becomes(true, async || relay.get(|s| &s.floor) >= 50).await;
        sqlx::query("update messaging.outbox set sent_at = null where seq = 7")
            .execute(world.pool())
            .await
            .expect("runs");
        times += 1;
        world.wait_for_count("sent_at is null", 0).await;
        world.wait_for_records("orders.v1", 50 + times).await;
        assert!(times < 10, "the full scan counts what it finds");
    }
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_failover_a_seq_that_is_used_again_is_another_row() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&EAGER).await;
    for n in 0..40 {
        world.append("orders.v1", "k", n.to_string().as_bytes()).await;
    }
    becomes(true, async || relay.get(|s| &s.floor) >= 40).await;
    // The standby had not heard of the last twenty rows, and draws their numbers again.
    sqlx::raw_sql(
        "delete from messaging.outbox where seq > 20;
         alter table messaging.outbox alter column seq restart with 21;",
    )
    .execute(world.pool())
    .await
    .expect("goes back");
    world.database.terminate_sessions().await;
    becomes(true, async || sqlx::query("select 1").execute(world.pool()).await.is_ok()).await;
    for n in 0..20 {
        world.append("orders.v1", "k", format!("new {n}").as_bytes()).await;
    }
    world.wait_for_count("sent_at is null", 0).await;
    world.wait_for_records("orders.v1", 60).await;
    let records = world.topics.read("orders.v1").await;
    let values: Vec<String> =
        records.iter().filter_map(|r| String::from_utf8(r.value.clone()?).ok()).collect();
    let fresh: Vec<&String> = values.iter().filter(|v| v.starts_with("new")).collect();
    assert_eq!(fresh.len(), 20);
    assert!(fresh.iter().enumerate().all(|(n, v)| **v == format!("new {n}")), "in order: {fresh:?}");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_backlog_of_a_paused_topic_is_passed_over_once_and_not_by_every_fetch() {
    let world = World::new(&["orders.v1"]).await;
    world.backlog("nowhere.v1", 500, 60_000).await;
    world.write("orders.v1", 10, 2).await;
    let relay = world.relay(&["--relay-topic-retry", "10min"]).await;
    // The backlog lies before them.
    world.wait_for_count("sent_at is not null", 20).await;
    let name = world.topics.name("nowhere.v1");
    becomes(true, async || relay.stats[0].paused().contains_key(&name)).await;
    let read = async || -> i64 {
        sqlx::query_scalar(
            "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'outbox_unsent_idx'",
        )
        .fetch_one(world.pool())
        .await
        .expect("statistics")
    };
    becomes(true, async || relay.get(|s| &s.floor) >= 60_000).await;
    // Between two reports of the sessions' statistics there are several fetches and samples.
    becomes(true, async || {
        let before = read().await;
        let mut after = before;
        for _ in 0..100 {
            after = read().await;
            if after != before {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        after - before < 30_000
    })
    .await;
    let started = Instant::now();
    world.write("orders.v1", 10, 2).await;
    world.wait_for_count("sent_at is not null", 40).await;
    println!("40 rows of the other topic within {:?}", started.elapsed());
    relay.stop().await;

    let relay = world.relay(&["--relay-topic-retry", "200ms"]).await;
    world.topics.add("nowhere.v1", 4, &[]).await;
    world.wait_for_count("sent_at is null", 0).await;
    world.assert_order_and_completeness("nowhere.v1").await;
    assert_eq!(relay.get(|s| &s.below_floor), 0);
    relay.stop().await;
}
