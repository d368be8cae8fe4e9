//! Tasks of a kind that a worker has no handler for: a deployment is under way, or was rolled back.

use std::time::Duration;

use serde_json::json;
use sqlx::PgPool;
use waybill_task::operate::{self, Filter, Verdict};
use waybill_task::{Guard, Handler, New, Running, Settings, Status, Stop, TaskId, Tasks, Worker};

use crate::support::*;

/// Nobody's, until the last worker of a test.
const OTHER: &str = "work.v2";
/// As the notifications' worker has it.
const LIMIT: u32 = 600;

/// One of the table: its state, its attempts, and the known task that waits for its key.
struct Row {
    status: &'static str,
    attempts: i32,
    id: TaskId,
    behind: Option<TaskId>,
}

/// Pending and running with an expired lease, never tried and before the last attempt, with and without a key.
async fn table(pool: &PgPool) -> Vec<Row> {
    let mut table = Vec::new();
    for status in ["pending", "running"] {
        for attempts in [0, 599] {
            for keyed in [false, true] {
                let key = format!("{status}-{attempts}");
                let new = |kind: &str, place: i64| {
                    let new = New::of(kind, json!({ "place": place }));
                    if keyed { new.key(&key) } else { new }
                };
                let id = enqueue_one(pool, new(OTHER, 1)).await;
                let behind = if keyed { Some(enqueue_one(pool, new(KIND, 2)).await) } else { None };
                leave(pool, id, status, attempts).await;
                table.push(Row { status, attempts, id, behind });
            }
        }
    }
    table
}

/// As a worker left it that knew the kind; what runs has lost its lease.
async fn leave(pool: &PgPool, id: TaskId, status: &str, attempts: i32) {
    sqlx::query(
        "update messaging.task set status = $2, attempts = $3, run_at = run_at - interval '400 days',
                token = case when $2 = 'running' then gen_random_uuid() end
         where id = $1",
    )
    .bind(id.as_uuid())
    .bind(status)
    .bind(attempts)
    .execute(pool)
    .await
    .unwrap();
}

/// Everything of the tasks of the kind, with the marks that a lock or a write that changes nothing leaves.
async fn traces(pool: &PgPool) -> Vec<String> {
    let sql =
        "select concat_ws(' ', t.ctid, t.xmin, t.xmax, t) from messaging.task t where kind = $1 order by seq";
    sqlx::query_scalar(sql).bind(OTHER).fetch_all(pool).await.unwrap()
}

fn worker(pool: &PgPool) -> Worker {
    let worker = Worker::builder(pool.clone(), settings());
    worker.on(KIND, Write).on(OTHER, Write).attempts(OTHER, LIMIT).build().unwrap()
}

/// Polls that the worker makes from now on have seen the whole table.
async fn polls(pool: &PgPool, count: usize) {
    for _ in 0..count {
        let witness = enqueue_one(pool, new()).await;
        until(pool, witness, "done").await;
    }
}

#[tokio::test]
async fn nobody_without_the_handler_touches_a_task_and_who_has_it_does_it_once() {
    let (database, tasks) = (database().await, Tasks::new());
    let pool = &database.pool;
    let table = table(pool).await;
    let untouched = traces(pool).await;
    // The limit of every other kind is below these attempts.
    let lacking = Beside::listening(pool, Settings { attempts: 1, ..settings() }, &tasks, Write);
    for row in &table {
        tasks.hand_off(row.id);
    }
    polls(pool, 5).await;
    while operate::purge(pool, Duration::ZERO).await.unwrap() > 0 {}
    assert_eq!(traces(pool).await, untouched, "claimed, counted, failed, purged or locked");
    for row in &table {
        if let Some(behind) = row.behind {
            let waits = ("pending".to_owned(), 0);
            assert_eq!(state(pool, behind).await, waits, "passed {} {}", row.status, row.attempts);
        }
    }
    for status in [Status::Pending, Status::Running] {
        let filter = Filter { status: Some(status), kind: Some(OTHER.into()), ..Filter::default() };
        let listed = operate::list(pool, &filter).await.unwrap();
        assert_eq!(listed.len(), 4, "{status}");
        assert!(listed.iter().all(|task| task.kind == OTHER && task.run_at < task.created_at));
    }
    lacking.stop().await;
    run(pool, "truncate effect").await;
    let knowing = [0, 1].map(|_| Beside::run(worker(pool)));
    until_quiet(pool).await;
    for worker in knowing {
        worker.stop().await;
    }
    for row in &table {
        let expected = ("done".to_owned(), row.attempts + 1);
        assert_eq!(state(pool, row.id).await, expected, "{} {}", row.status, row.attempts);
    }
    let ids: Vec<TaskId> = table.iter().flat_map(|row| [Some(row.id), row.behind]).flatten().collect();
    each_once(pool, &ids).await;
    let sql = "select count(*) from (select place < lag(place) over (partition by key order by n) as wrong \
               from effect where key is not null) e where wrong";
    let inversions: i64 = sqlx::query_scalar(sql).fetch_one(pool).await.unwrap();
    assert_eq!(inversions, 0, "what waited for its key has passed it");
}

/// More than a claim looks at, all of them due longer.
#[tokio::test]
async fn thousands_that_nobody_knows_starve_no_kind_that_is_known() {
    let database = database().await;
    enqueue(&database.pool, &vec![New::of(OTHER, json!({})); 4_500]).await;
    let worker = Beside::start(&database.pool, settings(), Write);
    for _ in 0..3 {
        for id in enqueue(&database.pool, &vec![new(); 20]).await {
            until(&database.pool, id, "done").await;
        }
    }
    worker.stop().await;
    assert_eq!(effects(&database.pool).await.len(), 60);
}

/// What an operator can do about each of them while nobody knows the kind.
#[tokio::test]
async fn an_operator_can_end_a_task_that_nobody_knows_and_what_waits_for_its_key_goes_on() {
    let database = database().await;
    let pool = &database.pool;
    let table = table(pool).await;
    let lacking = Beside::start(pool, settings(), Write);
    for row in &table {
        let (verdicts, name) = ([row.status, "again"], format!("{} {}", row.status, row.attempts));
        for verdict in verdicts {
            let expected = match verdict {
                "running" => Verdict::Requested,
                "again" if row.status == "pending" => Verdict::Refused(Status::Cancelled),
                _ => Verdict::Cancelled,
            };
            assert_eq!(operate::cancel(pool, row.id).await.unwrap(), expected, "{name} {verdict}");
        }
        assert_eq!(state(pool, row.id).await, ("cancelled".to_owned(), row.attempts), "{name}");
        if let Some(behind) = row.behind {
            until(pool, behind, "done").await;
        }
    }
    lacking.stop().await;
    assert_eq!(effects(pool).await.len(), 4, "of the known ones only");
}

/// Waits for the test, then tries to write.
struct Zombie(std::sync::Arc<tokio::sync::Semaphore>);

impl Handler for Zombie {
    async fn run(&self, task: &Running, guard: &Guard) -> Result<(), Stop> {
        self.0.acquire().await.unwrap().forget();
        effect(task, guard).await
    }
}

#[tokio::test]
async fn a_lease_that_holds_is_never_cancelled_from_outside_and_one_that_is_over_writes_nothing_afterwards() {
    let (database, gate) = (database().await, std::sync::Arc::new(tokio::sync::Semaphore::new(0)));
    let pool = &database.pool;
    let id = enqueue_one(pool, new()).await;
    let worker = Beside::start(pool, settings(), Zombie(gate.clone()));
    until(pool, id, "running").await;
    for _ in 0..3 {
        assert_eq!(operate::cancel(pool, id).await.unwrap(), Verdict::Requested);
    }
    // As after a stop of the process for longer than its lease.
    run(pool, "update messaging.task set kind = 'work.v2', run_at = messaging.task_now() - interval '1 s'")
        .await;
    assert_eq!(operate::cancel(pool, id).await.unwrap(), Verdict::Cancelled);
    gate.add_permits(1);
    worker.stop().await;
    assert_eq!(state(pool, id).await, ("cancelled".to_owned(), 1));
    assert!(effects(pool).await.is_empty());
}
