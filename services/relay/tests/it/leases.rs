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

async fn epochs(world: &World) -> i64 {
    sqlx::query_scalar("select sum(epoch)::bigint from messaging.relay_lease")
        .fetch_one(world.pool())
        .await
        .expect("sums")
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_that_join_and_leave_under_load_send_every_row_once_and_a_hot_key_in_order() {
    let world = World::new(&["orders.v1"]).await;
    let quick = ["--relay-lease-renew", "100ms"];
    let writing = async {
        let hot = async {
            for n in 0..400 {
                world.append("orders.v1", "hot", format!("{n}").as_bytes()).await;
            }
        };
        tokio::join!(world.write("orders.v1", 30, 50), hot);
    };
    let churning = async {
        let mut running = vec![world.relay(&quick).await];
        for _ in 0..4 {
            let next = world.relay(&quick).await;
            becomes(true, async || next.get(|s| &s.buckets) >= 20).await;
            running.push(next);
            if running.len() > 2 {
                running.remove(0).stop().await;
            }
        }
        running
    };
    let ((), running) = tokio::join!(writing, churning);
    world.wait_for_count("sent_at is null", 0).await;
    let records = world.assert_order_and_completeness("orders.v1").await;
    assert_eq!(records.len(), 1_900, "planned handovers drain and mark first");
    for relay in running {
        assert_eq!(relay.get(|s| &s.inversions) + relay.get(|s| &s.below_floor), 0);
        relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_recycled_all_the_time_cost_no_lease_and_no_row() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&["--relay-lease-renew", "200ms"]).await;
    relay.wait_for(|s| &s.buckets, 64).await;
    let recycling = async {
        for _ in 0..20 {
            sqlx::query(
                "select pg_terminate_backend(pid) from pg_stat_activity
                 where datname = current_database() and application_name like 'waybill-relay%'",
            )
            .execute(world.pool())
            .await
            .expect("ends them");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    };
    tokio::join!(world.write("orders.v1", 20, 40), recycling);
    world.wait_for_count("sent_at is null", 0).await;
    world.assert_order_and_completeness("orders.v1").await;
    assert_eq!((relay.get(|s| &s.inversions), epochs(&world).await), (0, 64), "a lease is no session's");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_that_is_locked_longer_than_a_lease_gets_no_second_owner() {
    let world = World::new(&["orders.v1"]).await;
    let quick = ["--relay-lease-ttl", "3500ms", "--relay-lease-renew", "200ms"];
    let first = world.relay(&quick).await;
    let second = world.relay(&quick).await;
    first.wait_for(|s| &s.buckets, 32).await;
    second.wait_for(|s| &s.buckets, 32).await;
    let before = epochs(&world).await;
    world.write("orders.v1", 20, 20).await;
    let mut ddl = world.pool().begin().await.expect("begins");
    sqlx::raw_sql("lock table messaging.outbox in access exclusive mode")
        .execute(&mut *ddl)
        .await
        .expect("locks");
    // Longer than the leases last.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    ddl.rollback().await.expect("ends");
    world.wait_for_count("sent_at is null", 0).await;
    assert_eq!(epochs(&world).await, before, "every lease was renewed meanwhile");
    let records = world.assert_order_and_completeness("orders.v1").await;
    assert_eq!(records.len(), 400, "marks that waited for the lock were made up for");
    first.stop().await;
    second.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_cannot_renew_stops_before_its_lease_is_over() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&["--relay-lease-ttl", "3500ms", "--relay-lease-renew", "200ms"]).await;
    relay.wait_for(|s| &s.lease_changes, 64).await;
    let mut lock = world.pool().begin().await.expect("begins");
    sqlx::raw_sql("lock table messaging.relay_lease in access exclusive mode")
        .execute(&mut *lock)
        .await
        .expect("locks");
    let locked = std::time::Instant::now();
    relay.wait_for(|s| &s.lease_changes, 128).await;
    assert!(locked.elapsed() < std::time::Duration::from_millis(3_500), "2 s before another may have it");
    world.append("orders.v1", "k", b"x").await;
    for _ in 0..10 {
        assert_eq!((world.count("sent_at is not null").await, relay.get(|s| &s.published)), (0, 0));
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    lock.rollback().await.expect("ends");
    relay.wait_for(|s| &s.published, 1).await;
    assert_eq!(epochs(&world).await, 64, "nobody else had them");
    relay.stop().await;
}
