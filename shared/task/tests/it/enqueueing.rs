//! From the caller's transaction to the first attempt.

use chrono::{TimeDelta, Utc};
use futures::FutureExt;
use serde_json::json;
use sqlx::migrate::Migrator;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use waybill_task::{HAND_OFF, New, Settings, Tasks, Worker};
use waybill_testkit::Database;

use crate::support::*;

#[tokio::test]
async fn a_task_rolls_back_with_its_transaction() {
    let database = database().await;
    let mut tx = database.pool.begin().await.unwrap();
    Tasks::new().enqueue(&mut tx, &new()).await.unwrap();
    tx.rollback().await.unwrap();
    let rows: i64 =
        sqlx::query_scalar("select count(*) from messaging.task").fetch_one(&database.pool).await.unwrap();
    assert_eq!(rows, 0);
}

#[tokio::test]
async fn what_was_handed_off_runs_without_a_poll() {
    let (database, tasks) = (database().await, Tasks::new());
    let worker = Beside::listening(&database.pool, never_polls(), &tasks, Write);
    // The only poll is over when this is done.
    let first = enqueue_one(&database.pool, new()).await;
    tasks.hand_off(first);
    until(&database.pool, first, "done").await;
    let ids = enqueue(&database.pool, &vec![new(); 200]).await;
    ids.iter().for_each(|id| tasks.hand_off(*id));
    until_quiet(&database.pool).await;
    worker.stop().await;
    each_once(&database.pool, &[&ids[..], &[first]].concat()).await;
}

#[tokio::test]
async fn a_full_channel_loses_nothing() {
    let (database, tasks) = (database().await, Tasks::new());
    let ids = enqueue(&database.pool, &vec![new(); HAND_OFF + 300]).await;
    ids.iter().for_each(|id| tasks.hand_off(*id));
    let worker = Beside::listening(&database.pool, settings(), &tasks, Write);
    until_quiet(&database.pool).await;
    worker.stop().await;
    each_once(&database.pool, &ids).await;
}

#[tokio::test]
async fn the_poller_takes_what_nobody_handed_off() {
    let database = database().await;
    let worker = Beside::start(&database.pool, settings(), Write);
    let ids = enqueue(&database.pool, &vec![new(); 50]).await;
    until_quiet(&database.pool).await;
    worker.stop().await;
    each_once(&database.pool, &ids).await;
}

#[tokio::test]
async fn a_task_runs_not_before_its_time_also_when_handed_off() {
    let (database, tasks) = (database().await, Tasks::new());
    let later = enqueue_one(&database.pool, new().run_at(Utc::now() + TimeDelta::hours(1))).await;
    let worker = Beside::listening(&database.pool, settings(), &tasks, Write);
    tasks.hand_off(later);
    let witness = enqueue_one(&database.pool, new()).await;
    until(&database.pool, witness, "done").await;
    assert_eq!(state(&database.pool, later).await, ("pending".to_owned(), 0));
    step_clock(&database.pool, "2 hours").await;
    until(&database.pool, later, "done").await;
    worker.stop().await;
}

#[tokio::test]
async fn a_kind_without_a_handler_is_left_to_other_workers() {
    let database = database().await;
    let foreign = enqueue_one(&database.pool, New::of("foreign", json!({}))).await;
    let own = enqueue_one(&database.pool, new()).await;
    let worker = Beside::start(&database.pool, settings(), Write);
    until(&database.pool, own, "done").await;
    worker.stop().await;
    assert_eq!(state(&database.pool, foreign).await, ("pending".to_owned(), 0));
}

#[tokio::test]
async fn a_handler_gets_what_was_enqueued() {
    let (database, notes) = (database().await, Notes::default());
    let told = notes.clone();
    let handler = play(move |task, _| {
        told.add(json!([task.kind, task.key, task.payload, task.attempt]));
        async { Ok(()) }.boxed()
    });
    let id = enqueue_one(&database.pool, New::of(KIND, json!({ "order": 7 })).key("k")).await;
    let worker = Beside::start(&database.pool, settings(), handler);
    until(&database.pool, id, "done").await;
    worker.stop().await;
    assert_eq!(notes.all(), [json!([KIND, "k", { "order": 7 }, 1])]);
}

/// Migrators of the neighbours in schema `messaging`.
fn outbox() -> Migrator {
    let mut migrator = sqlx::migrate!("../outbox/migrations");
    migrator.dangerous_set_table_name("messaging.outbox_migrations");
    migrator.create_schema("messaging");
    migrator
}

fn consumer() -> Migrator {
    let mut migrator = sqlx::migrate!("../consumer/migrations");
    migrator.dangerous_set_table_name("messaging.consumer_migrations");
    migrator.create_schema("messaging");
    migrator
}

#[tokio::test]
async fn migrations_run_in_any_order_beside_the_outboxs_and_the_consumers() {
    let empty = Database::create(&[]).await;
    for (n, order) in [
        [Some(outbox()), Some(waybill_task::migrator()), None],
        [Some(waybill_task::migrator()), Some(outbox()), None],
        [Some(waybill_task::migrator()), Some(consumer()), None],
        [Some(outbox()), Some(consumer()), Some(waybill_task::migrator())],
        [Some(waybill_task::migrator()), Some(outbox()), Some(consumer())],
    ]
    .into_iter()
    .enumerate()
    {
        // Each time in a schema that is not there yet, undone afterwards.
        let mut connection = PgConnection::connect(&empty.url).await.unwrap();
        for migrator in order.into_iter().flatten() {
            migrator.run(&mut connection).await.unwrap_or_else(|error| panic!("order {n}: {error}"));
        }
        // A second time there is nothing to do.
        waybill_task::migrator().run(&mut connection).await.unwrap();
        let stepped = "create or replace function messaging.now() returns timestamptz language sql volatile \
                       as $$ select timestamptz '2001-01-01 00:00Z' $$";
        connection.execute(AssertSqlSafe(stepped.to_owned())).await.unwrap();
        let year: i32 = sqlx::query_scalar("select extract(year from messaging.task_now())::integer")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        assert_eq!(year, 2001, "order {n}");
        connection.execute("drop schema messaging cascade").await.unwrap();
    }
}

#[tokio::test]
async fn a_worker_that_cannot_work_is_not_built() {
    let (database, tasks) = (database().await, Tasks::new());
    let built = |settings: Settings| {
        Worker::builder(database.pool.clone(), settings).on(KIND, Write).build().map(drop)
    };
    assert!(built(Settings::default()).is_ok());
    let default = Settings::default;
    assert!(built(Settings { workers: 0, ..default() }).is_err());
    assert!(built(Settings { heartbeat: default().lease / 2, ..default() }).is_err());
    assert!(built(Settings { retry_max: default().retry_min / 2, ..default() }).is_err());
    let builder = || Worker::builder(database.pool.clone(), default());
    assert!(builder().build().is_err(), "no handler");
    assert!(builder().on(KIND, Write).on(KIND, Write).build().is_err(), "two handlers");
    assert!(builder().on(KIND, Write).attempts("other", 1).build().is_err(), "attempts of nothing");
    let _first = builder().hand_off(&tasks).on(KIND, Write).build().unwrap();
    assert!(builder().hand_off(&tasks).on(KIND, Write).build().is_err(), "two listeners");
}
