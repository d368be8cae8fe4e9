//! Hints, marks, purges.

use tokio_util::sync::CancellationToken;
use waybill_outbox::Hint;

use crate::support::{World, becomes};

#[tokio::test(flavor = "multi_thread")]
async fn a_hint_wakes_the_relay_and_its_listener_is_never_in_a_transaction() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&["--relay-poll-idle", "1h", "--relay-lease-renew", "1s"]).await;
    relay.wait_for(|s| &s.buckets, 64).await;
    becomes(1, async || {
        sqlx::query_scalar!(
            r#"select count(*) as "n!" from pg_stat_activity
               where datname = current_database() and application_name = 'waybill-relay-listen'
                   and query ilike 'listen%' and state = 'idle' and xact_start is null"#
        )
        .fetch_one(world.pool())
        .await
        .expect("sessions")
    })
    .await;

    let stop = CancellationToken::new();
    let hint = Hint::start((*world.pool().connect_options()).clone(), stop.clone());
    // Fetches of the start may be under way still, and find a row or two; the next one comes in an hour.
    becomes(true, async || {
        world.append("orders.v1", "k", b"x").await;
        hint.ring();
        world.wait_for_count("sent_at is null", 0).await;
        relay.get(|s| &s.wakes_by_hint) > 0
    })
    .await;
    stop.cancel();
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_hint_polling_finds_the_row() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&[]).await;
    relay.wait_for(|s| &s.buckets, 64).await;
    for _ in 0..3 {
        world.append("orders.v1", "k", b"x").await;
        world.wait_for_count("sent_at is null", 0).await;
    }
    // The listener rings once when it has connected, which may be in the middle of this.
    let (hints, polls) = (relay.get(|s| &s.wakes_by_hint), relay.get(|s| &s.wakes_by_poll));
    assert!(hints <= 1 && polls >= 2, "{hints} by a hint, {polls} by polling");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_zero_deletes_a_row_when_it_is_acknowledged() {
    let world = World::new(&["orders.v1"]).await;
    world.write("orders.v1", 20, 20).await;
    let relay = world.relay(&["--relay-retention", "0s"]).await;
    world.wait_for_published("orders.v1", 400).await;
    world.wait_for_count("true", 0).await;
    assert_eq!(world.topics.read("orders.v1").await.len(), 400);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_purge_takes_rows_past_their_retention_and_never_unsent_dead_or_held_ones() {
    let world = World::new(&["orders.v1"]).await;
    let topic = world.topics.name("orders.v1");
    for state in ["unsent", "dead", "held", "young"] {
        for n in 0..3 {
            crate::support::append(world.pool(), &topic, &format!("{state}-{n}"), state.as_bytes()).await;
        }
    }
    // 2,500 old rows: more than one step; the others stand before and between them.
    sqlx::raw_sql(
        "insert into messaging.outbox (id, bucket, aggregatetype, aggregateid, type, topic, payload, created_at, sent_at)
         select gen_random_uuid(), 1, 'order', 'old', 't', 't', '', now() - interval '4 days', now() - interval '4 days'
         from generate_series(1, 2500);
         update messaging.outbox set created_at = now() - interval '9 days' where aggregateid <> 'old';
         update messaging.outbox set dead_at = now() - interval '9 days' where aggregateid like 'dead-%';
         update messaging.outbox set held_at = now() - interval '9 days' where aggregateid like 'held-%';
         update messaging.outbox set sent_at = now() - interval '2 days' where aggregateid like 'young-%';
         update messaging.outbox set topic = 'nowhere' where aggregateid like 'unsent-%';",
    )
    .execute(world.pool())
    .await
    .expect("prepares");
    let relay = world.relay(&["--relay-purge-interval", "50ms"]).await;
    world.wait_for_count("aggregateid = 'old'", 0).await;
    assert_eq!(world.count("true").await, 12);
    assert_eq!(relay.get(|s| &s.purged), 2_500);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_is_cut_off_costs_latency_only_and_listens_again() {
    let world = World::new(&["orders.v1"]).await;
    let relay = world.relay(&[]).await;
    relay.wait_for(|s| &s.buckets, 64).await;
    let listeners = async || -> Vec<i32> {
        sqlx::query_scalar(
            "select pid from pg_stat_activity where datname = current_database()
                and application_name = 'waybill-relay-listen' and query ilike 'listen%' and state = 'idle'",
        )
        .fetch_all(world.pool())
        .await
        .expect("sessions")
    };
    becomes(1, async || listeners().await.len()).await;
    let first = listeners().await[0];
    sqlx::query("select pg_terminate_backend($1)").bind(first).execute(world.pool()).await.expect("ends it");
    world.append("orders.v1", "k", b"x").await;
    world.wait_for_count("sent_at is null", 0).await;
    becomes(true, async || listeners().await.first().is_some_and(|pid| *pid != first)).await;
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outbox_has_one_index_for_living_rows_and_two_that_are_empty_while_all_is_well() {
    let world = World::new(&["orders.v1"]).await;
    world.write("orders.v1", 10, 10).await;
    let relay = world.relay(&[]).await;
    world.wait_for_count("sent_at is null", 0).await;
    relay.stop().await;
    let indexes: Vec<(String, i64)> = sqlx::query_as(
        "select indexrelname::text, coalesce((select count(*) from messaging.outbox where
             (indexrelname = 'outbox_dead_idx' and dead_at is not null and skipped_at is null)
             or (indexrelname = 'outbox_held_idx' and held_at is not null)), 0)
         from pg_stat_user_indexes where relname = 'outbox' order by 1",
    )
    .fetch_all(world.pool())
    .await
    .expect("indexes");
    let names: Vec<&str> = indexes.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["outbox_dead_idx", "outbox_held_idx", "outbox_pkey", "outbox_unsent_idx"]);
    assert!(indexes.iter().all(|(_, rows)| *rows == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_relays_own_sessions_have_the_settings_that_its_plans_rest_on() {
    let world = World::new(&["orders.v1"]).await;
    let store = waybill_relay::source::store::Store::new(
        &(*world.pool().connect_options()).clone(),
        waybill_relay::source::store::Pooler::None,
    );
    for (name, value) in waybill_relay::source::store::SESSION {
        assert_eq!(store.setting(name).await.expect("answers"), value, "{name}");
    }
    store.close().await;
}
