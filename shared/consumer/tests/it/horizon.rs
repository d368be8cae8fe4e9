//! What is older than the inbox remembers is never handled, and the inbox forgets only what is older.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{AssertSqlSafe, PgPool};
use uuid::{Timestamp, Uuid};
use waybill_consumer::{Horizon, purge};
use waybill_event::{MessageId, headers};

use crate::{
    harness::Scene,
    support::{
        Act, Effects, GROUP, Running, Source, database, dead_letter_topic, each, effects, inbox, orders,
        settings, topics, until_committed,
    },
};

/// Steps the clock by which rows age.
async fn step_clock(pool: &PgPool, by: &str) {
    let statement = format!(
        "create or replace function messaging.now() returns timestamptz language sql volatile \
         as $$ select clock_timestamp() + interval '{by}' $$"
    );
    sqlx::raw_sql(AssertSqlSafe(statement)).execute(pool).await.unwrap();
}

fn made(at: DateTime<Utc>) -> MessageId {
    let (seconds, nanos) = (at.timestamp().unsigned_abs(), at.timestamp_subsec_nanos());
    Uuid::new_v7(Timestamp::from_unix(uuid::NoContext, seconds, nanos)).into()
}

fn days_ago(days: i64) -> MessageId {
    made(Utc::now() - TimeDelta::days(days))
}

async fn purged(pool: &PgPool) -> u64 {
    purge(pool, Horizon::default()).await.unwrap()
}

#[tokio::test]
async fn a_message_older_than_the_horizon_is_dead_and_not_handled() {
    let mut scene = Scene::new(4).await;
    scene.ids = vec![days_ago(14), days_ago(12), Uuid::new_v4().into(), MessageId::new()];
    let delivered = scene.deliver().await;
    assert_eq!(delivered.dead[0].0, scene.ids[0]);
    assert_eq!(delivered.dead[0].1, "older than the inbox remembers (14 days, less one)");
    scene.only(&[1, 2, 3]).await;
}

/// However the same message comes again while the clock goes on and rows are purged, it has one effect.
#[tokio::test]
async fn there_is_no_moment_at_which_a_second_effect_gets_through() {
    let scene = Scene::new(1).await;
    let pool = &scene.database.pool;
    for (clock, stale) in [
        ("0", false),
        ("12 days 23 hours", false),
        // Stale, but the inbox still knows it: no dead letter for what was handled.
        ("13 days 1 hour", false),
        ("13 days 23 hours", false),
        ("14 days 1 hour", true),
        ("40 days", true),
    ] {
        step_clock(pool, clock).await;
        let rows = purged(pool).await;
        assert_eq!(rows, u64::from(clock == "14 days 1 hour"), "{clock}");
        let delivered = scene.deliver().await;
        assert_eq!(delivered.dead.len(), usize::from(stale), "{clock}");
        assert_eq!(scene.effects().await.len(), 1, "{clock}");
    }
}

#[tokio::test]
async fn rows_of_dead_and_of_replayed_messages_live_longer() {
    let scene = Scene::new(4).await;
    let pool = &scene.database.pool;
    scene.deliver().await;
    for (index, change) in [(1, "outcome = 'dead'"), (2, "replay_id = gen_random_uuid()")] {
        let statement = format!("update messaging.processed_message set {change} where message_id = $1");
        let id = scene.ids[index].as_uuid();
        sqlx::query(AssertSqlSafe(statement)).bind(id).execute(pool).await.unwrap();
    }
    step_clock(pool, "13 days 23 hours").await;
    assert_eq!(purged(pool).await, 0);
    step_clock(pool, "14 days 1 hour").await;
    assert_eq!(purged(pool).await, 2);
    step_clock(pool, "30 days 23 hours").await;
    assert_eq!(purged(pool).await, 0);
    step_clock(pool, "31 days 1 hour").await;
    assert_eq!(purged(pool).await, 2);
    assert!(inbox(pool).await.is_empty());
}

#[tokio::test]
async fn the_purge_goes_in_bounded_steps_and_waits_for_no_lock() {
    let database = database().await;
    let rows = "insert into messaging.processed_message (consumer_group, message_id, processed_at, outcome) \
                select $1, gen_random_uuid(), clock_timestamp() - interval '15 days', 'done' \
                from generate_series(1, 10500)";
    sqlx::query(rows).bind(GROUP).execute(&database.pool).await.unwrap();
    let mut other = database.pool.begin().await.unwrap();
    let held = "select message_id from messaging.processed_message limit 1 for update";
    sqlx::query(held).execute(&mut *other).await.unwrap();
    let mut steps = Vec::new();
    for _ in 0..3 {
        steps.push(tokio::time::timeout(Duration::from_secs(20), purged(&database.pool)).await.unwrap());
    }
    assert_eq!(steps, [10_000, 499, 0]);
    other.rollback().await.unwrap();
    assert_eq!(purged(&database.pool).await, 1);
}

#[tokio::test]
async fn a_stale_message_is_dead_lettered_once_and_a_replay_of_it_is_handled() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (sent, source, old) = (orders(3), Source::new(&topics), days_ago(20));
    source.order(0, &sent[0], old).await;
    source.order(0, &sent[0], old).await;
    let (id, value) = (days_ago(20).to_string(), waybill_event::encode(&sent[1]).unwrap());
    let replay: [(&str, Option<&[u8]>); 2] =
        [(headers::CE_ID, Some(id.as_bytes())), (headers::REPLAY_ID, Some(b"r"))];
    source.raw(0, Some(b"k"), Some(&value), &replay).await;
    handler.on(sent[2].order_id, Act::Permanent);
    source.orders(0, &sent[2..]).await;
    let running = Running::start(&database.pool, settings(&topics), each(&handler));
    until_committed(&topics, 0, 4).await;
    assert_eq!(effects(&database.pool).await, [sent[1].order_id]);
    assert_eq!(handler.calls(sent[0].order_id), 0);
    let dead = topics.read(&dead_letter_topic()).await;
    let classes: Vec<_> = dead.iter().map(|dead| dead.header(headers::ERROR_CLASS).unwrap()).collect();
    assert_eq!(classes, ["stale", "permanent"], "in the order of their offsets");
    assert_eq!(dead[0].header(headers::ERROR_CODE), Some("stale"));
    assert_eq!(inbox(&database.pool).await.get(&old.as_uuid()).map(String::as_str), Some("dead"));
    running.stop().await;
}
