//! Order keys.

use std::collections::{BTreeMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::FutureExt;
use rand::seq::SliceRandom;
use serde_json::json;
use waybill_task::{Guard, Handler, New, Running, Settings, Stop, Tasks, operate};

use crate::support::*;

/// Fails at random, and counts two tasks of a key at once.
#[derive(Clone, Default)]
struct Moody {
    running: Arc<Mutex<HashSet<String>>>,
    beside: Arc<AtomicUsize>,
}

impl Handler for Moody {
    async fn run(&self, task: &Running, guard: &Guard) -> Result<(), Stop> {
        let key = task.key.clone().unwrap();
        if !self.running.lock().unwrap().insert(key.clone()) {
            self.beside.fetch_add(1, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(rand::random_range(0..3))).await;
        // Before the commit, with which the next one may begin.
        self.running.lock().unwrap().remove(&key);
        match rand::random_range(0..100) {
            0..15 => Err(Stop::retry(anyhow::anyhow!("not now"))),
            15..18 => Err(Stop::fail(anyhow::anyhow!("never"))),
            18 => panic!("oh"),
            _ => effect(task, guard).await,
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_tasks_of_fifty_keys_keep_their_order_under_two_workers_and_failures() {
    let (database, moody) = (database().await, Moody::default());
    let mut places: Vec<i64> = (0..1_000).collect();
    places.shuffle(&mut rand::rng());
    let mut next = BTreeMap::<i64, i64>::new();
    let new: Vec<New> = places
        .iter()
        .map(|n| {
            let place = next.entry(n % 50).or_default();
            *place += 1;
            New::of(KIND, json!({ "place": *place })).key(format!("key-{}", n % 50))
        })
        .collect();
    let began = Instant::now();
    let workers = [0, 1].map(|_| Beside::start(&database.pool, settings(), moody.clone()));
    // Also while tasks are being enqueued.
    for part in new.chunks(100) {
        enqueue(&database.pool, part).await;
    }
    until_quiet(&database.pool).await;
    println!("1,000 tasks in {:?}", began.elapsed());
    for worker in workers {
        worker.stop().await;
    }
    let inversions: i64 = sqlx::query_scalar(
        "select count(*) from (select place < lag(place) over (partition by key order by n) as wrong from effect) e where wrong",
    )
    .fetch_one(&database.pool)
    .await
    .unwrap();
    assert_eq!((inversions, moody.beside.load(Ordering::Relaxed)), (0, 0));
    let failed: i64 = sqlx::query_scalar("select count(*) from messaging.task where status = 'failed'")
        .fetch_one(&database.pool)
        .await
        .unwrap();
    let effects = effects(&database.pool).await;
    assert_eq!(effects.len() as i64 + failed, 1_000);
    assert!(effects.values().all(|count| *count == 1));
}

#[tokio::test]
async fn the_next_of_a_key_follows_at_once() {
    let (database, tasks) = (database().await, Tasks::new());
    let new: Vec<New> = (0..20).map(|n| New::of(KIND, json!({ "place": n })).key("k")).collect();
    let ids = enqueue(&database.pool, &new).await;
    let worker = Beside::listening(&database.pool, never_polls(), &tasks, Write);
    tasks.hand_off(ids[0]);
    until_quiet(&database.pool).await;
    worker.stop().await;
}

#[tokio::test]
async fn nothing_passes_a_task_that_waits_for_its_retry() {
    let (database, notes) = (database().await, Notes::default());
    let told = notes.clone();
    let handler = play(move |task, _| {
        told.add(json!([task.payload["place"], task.attempt]));
        let retry = Stop::retry_after(anyhow::anyhow!("later"), Duration::from_secs(3_600));
        let first = task.payload["place"] == 1 && task.attempt == 1;
        async move { if first { Err(retry) } else { Ok(()) } }.boxed()
    });
    let of = |place: i64, key: &str| New::of(KIND, json!({ "place": place })).key(key);
    let ids = enqueue(&database.pool, &[of(1, "a"), of(2, "a"), of(3, "b")]).await;
    let worker = Beside::start(&database.pool, settings(), handler);
    until(&database.pool, ids[2], "done").await;
    notes.until(2).await;
    let witness = enqueue_one(&database.pool, of(4, "b")).await;
    until(&database.pool, witness, "done").await;
    assert_eq!(state(&database.pool, ids[1]).await, ("pending".to_owned(), 0));
    step_clock(&database.pool, "2 hours").await;
    until_quiet(&database.pool).await;
    worker.stop().await;
    let notes = notes.all();
    let of_a: Vec<_> = notes.iter().filter(|note| note[0] == 1 || note[0] == 2).collect();
    assert_eq!(of_a, [&json!([1, 1]), &json!([1, 2]), &json!([2, 1])]);
}

#[tokio::test]
async fn a_failed_and_a_cancelled_task_let_the_next_pass() {
    let database = database().await;
    let handler = play(|task, guard| {
        async move {
            match task.payload["place"].as_i64() {
                Some(1) => Err(Stop::fail(anyhow::anyhow!("never"))),
                _ => effect(&task, guard).await,
            }
        }
        .boxed()
    });
    let of = |place: i64| New::of(KIND, json!({ "place": place })).key("k");
    let ids = enqueue(&database.pool, &[of(1), of(2), of(3)]).await;
    assert_eq!(operate::cancel(&database.pool, ids[1]).await.unwrap(), operate::Verdict::Cancelled);
    let worker = Beside::start(&database.pool, settings(), handler);
    until(&database.pool, ids[2], "done").await;
    worker.stop().await;
    let states = [state(&database.pool, ids[0]).await.0, state(&database.pool, ids[1]).await.0];
    assert_eq!(states, ["failed", "cancelled"]);
}

/// Two transactions that hold nothing of the key: the earlier `seq` is committed while the later one runs.
#[tokio::test]
async fn an_earlier_task_that_commits_late_never_runs_beside_a_later_one() {
    let (database, notes) = (database().await, Notes::default());
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (told, waits) = (notes.clone(), gate.clone());
    let handler = play(move |task, _| {
        let (told, waits) = (told.clone(), waits.clone());
        async move {
            told.add(json!(["begins", task.payload["place"]]));
            waits.acquire().await.unwrap().forget();
            told.add(json!(["ends", task.payload["place"]]));
            Ok(())
        }
        .boxed()
    });
    let of = |place: i64| New::of(KIND, json!({ "place": place })).key("k");
    let mut late = database.pool.begin().await.unwrap();
    Tasks::new().enqueue(&mut late, &of(1)).await.unwrap();
    enqueue_one(&database.pool, of(2)).await;
    // One: a second one could hide a claim that fails each time.
    let worker = Beside::start(&database.pool, settings(), handler);
    notes.until(1).await;
    late.commit().await.unwrap();
    let witness = enqueue_one(&database.pool, New::of(KIND, json!({ "place": 0 }))).await;
    notes.until(2).await;
    assert_eq!(notes.all(), [json!(["begins", 2]), json!(["begins", 0])]);
    gate.add_permits(3);
    until_quiet(&database.pool).await;
    until(&database.pool, witness, "done").await;
    worker.stop().await;
    let of_key: Vec<_> = notes.all().into_iter().filter(|note| note[1] != 0).collect();
    assert_eq!(of_key, [json!(["begins", 2]), json!(["ends", 2]), json!(["begins", 1]), json!(["ends", 1])]);
}

/// The race that no snapshot can see: both claims are under way. The index decides.
#[tokio::test]
async fn the_database_refuses_a_second_running_task_of_a_key() {
    let database = database().await;
    enqueue(&database.pool, &[new().key("k"), new().key("k")]).await;
    let both = "update messaging.task set status = 'running', token = gen_random_uuid()";
    let refused = sqlx::query(both).execute(&database.pool).await.unwrap_err();
    assert_eq!(refused.as_database_error().unwrap().constraint(), Some("task_running_key_idx"));
}

/// No snapshot shows the other claim of the key. The index does, once that has committed.
#[tokio::test]
async fn a_claim_that_meets_another_one_of_its_key_looks_again() {
    let database = database().await;
    let ids = enqueue(&database.pool, &[new().key("k"), new().key("k")]).await;
    let mut other = database.pool.begin().await.unwrap();
    let claim = "update messaging.task set status = 'running', token = gen_random_uuid(), \
                 run_at = run_at + interval '1 hour' where id = $1";
    sqlx::query(claim).bind(ids[1].as_uuid()).execute(&mut *other).await.unwrap();
    let worker = Beside::start(&database.pool, settings(), Write);
    waybill_testkit::eventually(async || {
        let waits = "select count(*) from pg_stat_activity where datname = current_database() and wait_event = 'transactionid'";
        let waits: i64 = sqlx::query_scalar(waits).fetch_one(&database.pool).await.unwrap();
        if waits > 0 { Ok(()) } else { Err("it does not wait") }
    })
    .await;
    other.commit().await.unwrap();
    let witness = enqueue_one(&database.pool, new()).await;
    until(&database.pool, witness, "done").await;
    worker.stop().await;
    assert_eq!(state(&database.pool, ids[0]).await, ("pending".to_owned(), 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_that_meet_in_the_index_look_again() {
    let (database, moody) = (database().await, Moody::default());
    // Enqueued by transactions side by side, so that claims see later ones before earlier ones.
    let quick = Settings { poll: Duration::from_millis(5), ..settings() };
    let workers = [0, 1, 2].map(|_| Beside::start(&database.pool, quick.clone(), moody.clone()));
    let mut enqueueing = tokio::task::JoinSet::new();
    for n in 0..8 {
        let pool = database.pool.clone();
        enqueueing.spawn(async move {
            for place in 0..25_i64 {
                enqueue_one(&pool, New::of(KIND, json!({ "place": place })).key(format!("{}", n % 2))).await;
            }
        });
    }
    enqueueing.join_all().await;
    until_quiet(&database.pool).await;
    for worker in workers {
        worker.stop().await;
    }
    assert_eq!(moody.beside.load(Ordering::Relaxed), 0);
    let effects = effects(&database.pool).await;
    assert!(effects.values().all(|count| *count == 1));
}

/// More tasks wait behind one that is to be tried again than a claim looks at.
#[tokio::test]
async fn thousands_that_wait_for_their_key_starve_nobody() {
    let database = database().await;
    let mut new = vec![new().key("stuck").run_at(chrono::Utc::now() + chrono::TimeDelta::hours(1))];
    new.extend(vec![New::of(KIND, json!({})).key("stuck"); 4_500]);
    enqueue(&database.pool, &new).await;
    let worker = Beside::start(&database.pool, settings(), Write);
    for _ in 0..3 {
        let ids = enqueue(&database.pool, &vec![New::of(KIND, json!({})); 20]).await;
        for id in ids {
            until(&database.pool, id, "done").await;
        }
    }
    worker.stop().await;
    assert_eq!(effects(&database.pool).await.len(), 60);
}
