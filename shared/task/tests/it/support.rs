//! A database, a worker that runs beside the test, and handlers made of closures.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, PgPool};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use waybill_task::{Error, Guard, Handler, New, Running, Settings, Stop, TaskId, Tasks, Worker};
use waybill_testkit::{Database, eventually};

pub(crate) const KIND: &str = "work";

/// The tasks' tables, a clock to step, and a table that takes any effect any number of times.
pub(crate) async fn database() -> Database {
    let database = Database::create(&[waybill_task::migrator()]).await;
    run(
        &database.pool,
        "create table effect (n bigint generated always as identity, task uuid not null, key text, place bigint)",
    )
    .await;
    database
}

pub(crate) async fn run(pool: &PgPool, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(pool).await.expect("runs");
}

/// Steps the clock by which tasks are due.
pub(crate) async fn step_clock(pool: &PgPool, by: &str) {
    let sql = format!(
        "create or replace function messaging.now() returns timestamptz language sql volatile \
         as $$ select clock_timestamp() + interval '{by}' $$"
    );
    run(pool, &sql).await;
}

/// Fast ones.
pub(crate) fn settings() -> Settings {
    Settings {
        poll: Duration::from_millis(50),
        retry_min: Duration::from_millis(5),
        retry_max: Duration::from_millis(20),
        drain_timeout: Duration::from_secs(10),
        ..Settings::default()
    }
}

/// No poll before the test is over.
pub(crate) fn never_polls() -> Settings {
    Settings { poll: Duration::from_secs(3_600), ..settings() }
}

/// A handler made of a closure.
pub(crate) struct Play<F>(F);

impl<F> Handler for Play<F>
where
    F: for<'a> Fn(Running, &'a Guard) -> BoxFuture<'a, Result<(), Stop>> + Send + Sync + 'static,
{
    async fn run(&self, task: &Running, guard: &Guard) -> Result<(), Stop> {
        (self.0)(task.clone(), guard).await
    }
}

pub(crate) fn play<F>(f: F) -> Play<F>
where
    F: for<'a> Fn(Running, &'a Guard) -> BoxFuture<'a, Result<(), Stop>> + Send + Sync + 'static,
{
    Play(f)
}

/// Writes one effect and completes in the same transaction.
pub(crate) async fn effect(task: &Running, guard: &Guard) -> Result<(), Stop> {
    let mut tx = guard.begin().await?;
    sqlx::query("insert into effect (task, key, place) values ($1, $2, $3)")
        .bind(task.id.as_uuid())
        .bind(&task.key)
        .bind(task.payload["place"].as_i64())
        .execute(&mut *tx)
        .await?;
    tx.complete().await
}

pub(crate) struct Write;

impl Handler for Write {
    async fn run(&self, task: &Running, guard: &Guard) -> Result<(), Stop> {
        effect(task, guard).await
    }
}

/// A worker beside the test.
pub(crate) struct Beside {
    shutdown: CancellationToken,
    running: JoinHandle<Result<(), Error>>,
}

impl Beside {
    pub(crate) fn start(pool: &PgPool, settings: Settings, handler: impl Handler) -> Self {
        Self::run(Worker::builder(pool.clone(), settings).on(KIND, handler).build().expect("builds"))
    }

    pub(crate) fn listening(pool: &PgPool, settings: Settings, tasks: &Tasks, handler: impl Handler) -> Self {
        let worker = Worker::builder(pool.clone(), settings).hand_off(tasks).on(KIND, handler);
        Self::run(worker.build().expect("builds"))
    }

    pub(crate) fn run(worker: Worker) -> Self {
        let shutdown = CancellationToken::new();
        Self { running: tokio::spawn(worker.run(shutdown.clone())), shutdown }
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.running.await.expect("ends").expect("without an error");
    }
}

pub(crate) fn new() -> New {
    New::of(KIND, json!({}))
}

pub(crate) async fn enqueue(pool: &PgPool, new: &[New]) -> Vec<TaskId> {
    let mut tx = pool.begin().await.expect("begins");
    let ids = Tasks::new().enqueue_all(&mut tx, new).await.expect("enqueues");
    tx.commit().await.expect("commits");
    ids
}

pub(crate) async fn enqueue_one(pool: &PgPool, new: New) -> TaskId {
    enqueue(pool, &[new]).await[0]
}

/// State and attempts of a task.
pub(crate) async fn state(pool: &PgPool, id: TaskId) -> (String, i32) {
    sqlx::query_as("select status, attempts from messaging.task where id = $1")
        .bind(id.as_uuid())
        .fetch_one(pool)
        .await
        .expect("task")
}

pub(crate) async fn last_error(pool: &PgPool, id: TaskId) -> String {
    sqlx::query_scalar("select coalesce(last_error, '') from messaging.task where id = $1")
        .bind(id.as_uuid())
        .fetch_one(pool)
        .await
        .expect("task")
}

pub(crate) async fn until(pool: &PgPool, id: TaskId, status: &str) -> i32 {
    eventually(async || match state(pool, id).await {
        (seen, attempts) if seen == status => Ok(attempts),
        seen => Err(seen),
    })
    .await
}

/// Waits until no task is pending or running.
pub(crate) async fn until_quiet(pool: &PgPool) {
    eventually(async || {
        let open: i64 =
            sqlx::query_scalar("select count(*) from messaging.task where status in ('pending', 'running')")
                .fetch_one(pool)
                .await
                .map_err(|e| e.to_string())?;
        if open == 0 { Ok(()) } else { Err(format!("{open} open")) }
    })
    .await;
}

/// Number of effects by task.
pub(crate) async fn effects(pool: &PgPool) -> HashMap<TaskId, i64> {
    let rows: Vec<(uuid::Uuid, i64)> = sqlx::query_as("select task, count(*) from effect group by task")
        .fetch_all(pool)
        .await
        .expect("effects");
    rows.into_iter().map(|(id, count)| (id.into(), count)).collect()
}

pub(crate) async fn each_once(pool: &PgPool, ids: &[TaskId]) {
    let effects = effects(pool).await;
    assert_eq!(effects.len(), ids.len());
    assert!(ids.iter().all(|id| effects.get(id) == Some(&1)), "{effects:?}");
}

/// What handlers tell the test.
#[derive(Clone, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<Value>>>);

impl Notes {
    pub(crate) fn add(&self, note: impl Into<Value>) {
        self.0.lock().expect("not poisoned").push(note.into());
    }

    pub(crate) fn all(&self) -> Vec<Value> {
        self.0.lock().expect("not poisoned").clone()
    }

    pub(crate) async fn until(&self, count: usize) -> Vec<Value> {
        eventually(async || {
            let all = self.all();
            if all.len() >= count { Ok(all) } else { Err(all) }
        })
        .await
    }
}
