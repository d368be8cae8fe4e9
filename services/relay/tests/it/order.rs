//! Order per key, and no loss.

use crate::support::{World, append, becomes};

const QUICK: [&str; 4] = ["--relay-lease-ttl", "3500ms", "--relay-lease-renew", "300ms"];

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_of_which_one_is_killed_keep_the_order_of_every_key_and_lose_nothing() {
    let world = World::new(&["orders.v1"]).await;
    let first = world.relay(&QUICK).await;
    let second = world.relay(&QUICK).await;
    first.wait_for(|s| &s.buckets, 32).await;
    second.wait_for(|s| &s.buckets, 32).await;

    let (writing, killing) = (world.write("orders.v1", 60, 60), async {
        world.wait_for_published("orders.v1", 600).await;
        assert_eq!(first.get(|s| &s.inversions), 0);
        first.kill().await;
    });
    tokio::join!(writing, killing);
    world.wait_for_count("sent_at is null", 0).await;

    world.assert_order_and_completeness("orders.v1").await;
    assert_eq!(second.get(|s| &s.inversions), 0);
    assert_eq!(second.get(|s| &s.buckets), 64, "the survivor took the other's buckets");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_commits_after_rows_with_a_higher_seq_is_published() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&[]).await;
    let mut late = world.pool().begin().await.expect("begins");
    append(&mut *late, &world.topics.name("orders.v1"), "late", b"1").await;
    world.append("orders.v1", "early", b"2").await;
    world.wait_for_published("orders.v1", 1).await;
    world.wait_for_count("sent_at is not null", 1).await;
    late.commit().await.expect("commits");
    world.wait_for_published("orders.v1", 2).await;
    relay.stop().await;
}

/// The cursor of the fast path has passed the seq of a row that is not committed yet; the row commits, and the
/// next row of its key right after it: only the look behind the cursor can see it.
#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_commits_late_is_not_overtaken_by_the_next_row_of_its_key() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&["--relay-poll-busy", "400ms"]).await;
    let topic = world.topics.name("orders.v1");
    for round in 0..5 {
        let key = format!("slow-{round}");
        let mut slow = world.pool().begin().await.expect("begins");
        append(&mut *slow, &topic, &key, b"1").await;
        // A row of the same bucket moves its cursor on.
        let bucket = waybill_outbox::bucket(&key);
        let mut others = (0..).map(|n| format!("other-{round}-{n}"));
        let other = others.find(|k| waybill_outbox::bucket(k) == bucket).expect("one in 64");
        append(world.pool(), &topic, &other, b"x").await;
        relay.wait_for(|s| &s.published, round * 3 + 1).await;
        slow.commit().await.expect("commits");
        append(world.pool(), &topic, &key, b"2").await;
        relay.wait_for(|s| &s.published, round * 3 + 3).await;
    }
    world.assert_order_and_completeness("orders.v1").await;
    assert_eq!(relay.get(|s| &s.inversions), 0);
    assert!(relay.get(|s| &s.late_commits) > 0, "the case came up");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_and_a_start_in_the_middle_of_a_backlog_publish_every_row_once() {
    let world = World::new(&["orders.v1"]).await;
    world.backlog("orders.v1", 400, 20_000).await;
    let relay = world.relay(&[]).await;
    becomes(true, async || relay.get(|s| &s.published) > 0).await;
    relay.stop().await;
    assert!(world.count("sent_at is null").await > 0, "it was stopped in the middle");
    let free = "select count(*) from messaging.relay_lease where owner is not null";
    let owned: i64 = sqlx::query_scalar(free).fetch_one(world.pool()).await.expect("counts");
    assert_eq!(owned, 0, "leases are released");

    let started = std::time::Instant::now();
    let relay = world.relay(&[]).await;
    world.wait_for_count("sent_at is null", 0).await;
    println!("{} rows in {:?}", relay.get(|s| &s.published), started.elapsed());
    let records = world.assert_order_and_completeness("orders.v1").await;
    assert_eq!(records.len(), 20_000, "acknowledged rows were marked before the end");
    relay.stop().await;
}
