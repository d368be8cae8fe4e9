//! One attempt at a time holds a task, and only it writes.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use serde_json::json;
use tokio::sync::Semaphore;
use waybill_task::{Guard, Handler, Running, Settings, Stop, TaskId, Tasks};
use waybill_testkit::eventually;

use crate::support::*;

/// Counts attempts at a task that is already being run.
#[derive(Clone, Default)]
struct Alone {
    running: Arc<Mutex<HashSet<TaskId>>>,
    beside: Arc<AtomicUsize>,
}

impl Handler for Alone {
    async fn run(&self, task: &Running, guard: &Guard) -> Result<(), Stop> {
        if !self.running.lock().unwrap().insert(task.id) {
            self.beside.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let result = effect(task, guard).await;
        self.running.lock().unwrap().remove(&task.id);
        result
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn two_workers_never_run_one_task_at_once() {
    let (database, alone, tasks) = (database().await, Alone::default(), Tasks::new());
    let ids = enqueue(&database.pool, &vec![new(); 500]).await;
    let settings = Settings { attempts: 1, poll: Duration::from_millis(5), ..settings() };
    let first = Beside::listening(&database.pool, settings.clone(), &tasks, alone.clone());
    let second = Beside::start(&database.pool, settings, alone.clone());
    ids.iter().for_each(|id| tasks.hand_off(*id));
    until_quiet(&database.pool).await;
    first.stop().await;
    second.stop().await;
    each_once(&database.pool, &ids).await;
    assert_eq!(alone.beside.load(Ordering::Relaxed), 0);
}

/// The first attempt waits at a gate, as a process does that was stopped; the second goes through.
fn zombie(notes: &Notes, gate: &Arc<Semaphore>) -> impl Handler {
    let (notes, gate) = (notes.clone(), gate.clone());
    play(move |task, guard| {
        let (notes, gate) = (notes.clone(), gate.clone());
        async move {
            notes.add(json!(["begins", task.attempt]));
            if task.attempt == 1 {
                gate.acquire().await.unwrap().forget();
            }
            let progress = async {
                let mut tx = guard.begin().await?;
                sqlx::query("insert into effect (task) values ($1)")
                    .bind(task.id.as_uuid())
                    .execute(&mut *tx)
                    .await?;
                tx.commit().await
            };
            let progress = progress.await;
            let result = effect(&task, guard).await;
            let lost = |result: &Result<(), Stop>| matches!(result, Err(Stop::Lost));
            notes.add(json!([task.attempt, lost(&progress), lost(&result)]));
            result
        }
        .boxed()
    })
}

#[tokio::test]
async fn an_attempt_that_outlives_its_lease_writes_nothing() {
    let (database, notes, gate) = (database().await, Notes::default(), Arc::new(Semaphore::new(0)));
    let id = enqueue_one(&database.pool, new()).await;
    let first = Beside::start(&database.pool, settings(), zombie(&notes, &gate));
    notes.until(1).await;
    step_clock(&database.pool, "121 seconds").await;
    let second = Beside::start(&database.pool, settings(), zombie(&notes, &gate));
    until(&database.pool, id, "done").await;
    gate.add_permits(1);
    let notes = notes.until(4).await;
    let (expected, zombie) = ([json!([2, false, false])], json!([1, true, true]));
    assert!(notes.contains(&expected[0]) && notes.contains(&zombie), "{notes:?}");
    first.stop().await;
    second.stop().await;
    assert_eq!(state(&database.pool, id).await, ("done".to_owned(), 2));
    assert_eq!(effects(&database.pool).await[&id], 2, "one progress, one end, both of the second attempt");
}

#[tokio::test]
async fn a_heartbeat_keeps_a_long_task() {
    let (database, gate) = (database().await, Arc::new(Semaphore::new(0)));
    let settings =
        Settings { lease: Duration::from_millis(1_500), heartbeat: Duration::from_millis(200), ..settings() };
    let starts = Arc::new(AtomicUsize::new(0));
    let handler = || {
        let (gate, starts) = (gate.clone(), starts.clone());
        play(move |_, _| {
            let (gate, starts) = (gate.clone(), starts.clone());
            async move {
                starts.fetch_add(1, Ordering::Relaxed);
                gate.acquire().await.unwrap().forget();
                Ok(())
            }
            .boxed()
        })
    };
    let id = enqueue_one(&database.pool, new()).await;
    let workers = [0, 1].map(|_| Beside::start(&database.pool, settings.clone(), handler()));
    // Two leases long.
    eventually(async || {
        let age: f64 = sqlx::query_scalar(
            "select extract(epoch from updated_at - created_at)::float8 from messaging.task where id = $1",
        )
        .bind(id.as_uuid())
        .fetch_one(&database.pool)
        .await
        .unwrap();
        if age > 3.0 { Ok(()) } else { Err(age) }
    })
    .await;
    gate.add_permits(1);
    assert_eq!(until(&database.pool, id, "done").await, 1);
    assert_eq!(starts.load(Ordering::Relaxed), 1);
    for worker in workers {
        worker.stop().await;
    }
}

/// Tells when it is dropped.
struct Dropped(Notes);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.add("dropped");
    }
}

#[tokio::test]
async fn a_lost_token_ends_the_handler() {
    let (database, notes) = (database().await, Notes::default());
    let told = notes.clone();
    let handler = play(move |_, _| {
        let dropped = Dropped(told.clone());
        async move {
            dropped.0.add("begins");
            std::future::pending::<()>().await;
            Ok(())
        }
        .boxed()
    });
    let settings =
        Settings { lease: Duration::from_secs(60), heartbeat: Duration::from_millis(50), ..settings() };
    let id = enqueue_one(&database.pool, new()).await;
    let worker = Beside::start(&database.pool, settings, handler);
    notes.until(1).await;
    // As if another process had taken it.
    let taken = "update messaging.task set token = gen_random_uuid(), run_at = messaging.task_now() + interval '1 hour'";
    run(&database.pool, taken).await;
    notes.until(2).await;
    worker.stop().await;
    assert_eq!(state(&database.pool, id).await, ("running".to_owned(), 1));
}
