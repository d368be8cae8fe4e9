//! Who owns which bucket.

use crate::support::{World, becomes};

/// Steps the clock that leases are kept by.
async fn step(world: &World, by: &str) {
    let statement = format!(
        "create or replace function messaging.now() returns timestamptz language sql volatile
         as $$ select clock_timestamp() + interval '{by}' $$"
    );
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(world.pool()).await.expect("steps the clock");
}

async fn rounds(world: &World, instance: &str) -> i64 {
    // Each heartbeat is a new version of the row.
    sqlx::query_scalar("select xmin::text::bigint from messaging.relay_instance where id = $1")
        .bind(instance)
        .fetch_one(world.pool())
        .await
        .unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_relays_buckets_are_taken_when_their_leases_end_and_not_before() {
    let world = World::new(&["orders.v1"]).await;
    let ttl = ["--relay-lease-ttl", "10min"];
    let first = world.relay(&[&ttl[..], &["--relay-instance", "first"]].concat()).await;
    first.wait_for(|s| &s.buckets, 64).await;
    first.kill().await;
    world.append("orders.v1", "k", b"x").await;

    let second = world
        .relay(&[&ttl[..], &["--relay-instance", "second", "--relay-lease-renew", "50ms"]].concat())
        .await;
    for _ in 0..3 {
        let before = rounds(&world, "second").await;
        becomes(true, async || rounds(&world, "second").await > before).await;
    }
    assert_eq!(second.get(|s| &s.buckets), 0, "the leases of the dead one still stand");
    assert_eq!(world.count("sent_at is null").await, 1);

    step(&world, "11 minutes").await;
    second.wait_for(|s| &s.buckets, 64).await;
    world.wait_for_count("sent_at is null", 0).await;
    let epochs = "select count(*) from messaging.relay_lease where epoch = 2 and owner = 'second'";
    let changed: i64 = sqlx::query_scalar(epochs).fetch_one(world.pool()).await.expect("counts");
    assert_eq!(changed, 64, "a new owner, a new epoch");
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_later_than_any_lease_can_is_free_after_the_clock_stepped_back() {
    let world = World::new(&["orders.v1"]).await;
    step(&world, "1 day").await;
    let first = world.relay(&["--relay-instance", "first"]).await;
    first.wait_for(|s| &s.buckets, 64).await;
    first.kill().await;
    step(&world, "0").await;
    let second = world.relay(&["--relay-instance", "second"]).await;
    second.wait_for(|s| &s.buckets, 64).await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_relay_gets_its_share_while_rows_flow_and_no_row_is_sent_twice() {
    let world = World::new(&["orders.v1"]).await;
    let quick = ["--relay-lease-renew", "100ms"];
    let first = world.relay(&quick).await;
    first.wait_for(|s| &s.buckets, 64).await;
    let (second, ()) = tokio::join!(
        async {
            let second = world.relay(&quick).await;
            second.wait_for(|s| &s.buckets, 32).await;
            second
        },
        world.write("orders.v1", 50, 40)
    );
    first.wait_for(|s| &s.buckets, 32).await;
    world.wait_for_count("sent_at is null", 0).await;
    let records = world.assert_order_and_completeness("orders.v1").await;
    assert_eq!(records.len(), 2_000, "a bucket changes hands only when it is drained and marked");

    first.stop().await;
    second.wait_for(|s| &s.buckets, 64).await;
    second.stop().await;
}
