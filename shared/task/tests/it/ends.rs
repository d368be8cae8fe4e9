//! How attempts end.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use serde_json::json;
use tokio::sync::Semaphore;
use waybill_task::operate::{self, Verdict};
use waybill_task::{Settings, Stop, Worker};

use crate::support::*;

#[tokio::test]
async fn a_task_is_tried_again_until_its_limit_and_then_fails_visibly() {
    let database = database().await;
    let handler = || play(|_, _| async { Err(Stop::retry(anyhow::anyhow!("no\0t now"))) }.boxed());
    let worker = Worker::builder(database.pool.clone(), Settings { attempts: 3, ..settings() })
        .on(KIND, handler())
        .on("patient", handler())
        .attempts("patient", 5);
    let id = enqueue_one(&database.pool, new()).await;
    let patient = enqueue_one(&database.pool, waybill_task::New::of("patient", json!({}))).await;
    let worker = Beside::run(worker.build().unwrap());
    assert_eq!(until(&database.pool, id, "failed").await, 3);
    assert_eq!(until(&database.pool, patient, "failed").await, 5);
    worker.stop().await;
    assert_eq!(last_error(&database.pool, id).await, "not now");
}

#[tokio::test]
async fn a_retry_waits_as_long_as_it_says_or_at_most_its_bound() {
    let database = database().await;
    let handler = play(|task, _| {
        let error = anyhow::anyhow!("later");
        let after = task.payload["after"].as_u64();
        let stop = after.map_or_else(
            || Stop::retry(anyhow::anyhow!("later")),
            |s| Stop::retry_after(error, Duration::from_secs(s)),
        );
        async move { Err(stop) }.boxed()
    });
    let settings = Settings {
        retry_min: Duration::from_secs(1_000),
        retry_max: Duration::from_secs(5_000),
        ..settings()
    };
    let exact = enqueue_one(&database.pool, waybill_task::New::of(KIND, json!({ "after": 300 }))).await;
    let drawn = enqueue(&database.pool, &vec![new(); 20]).await;
    let worker = Beside::start(&database.pool, settings, handler);
    let error = "select count(*) from messaging.task where last_error is not null";
    waybill_testkit::eventually(async || {
        let count: i64 = sqlx::query_scalar(error).fetch_one(&database.pool).await.unwrap();
        if count == 21 { Ok(()) } else { Err(count) }
    })
    .await;
    worker.stop().await;
    let waits = async |id: waybill_task::TaskId| -> f64 {
        sqlx::query_scalar(
            "select extract(epoch from run_at - updated_at)::float8 from messaging.task where id = $1",
        )
        .bind(id.as_uuid())
        .fetch_one(&database.pool)
        .await
        .unwrap()
    };
    assert!((waits(exact).await - 300.0).abs() < 1.0);
    let mut delays = Vec::new();
    for id in drawn {
        delays.push(waits(id).await);
    }
    // A first attempt's bound; one in a thousand may have come round again, with twice the bound.
    assert!(delays.iter().all(|delay| (-1.0..=2_001.0).contains(delay)), "{delays:?}");
    let (least, most) = delays.iter().fold((f64::MAX, 0.0), |(l, m), d| (d.min(l), d.max(m)));
    assert!(most - least > 100.0, "full jitter: {delays:?}");
}

#[tokio::test]
async fn a_panic_is_an_attempt_and_the_worker_goes_on() {
    let database = database().await;
    let handler = play(|task, guard| {
        async move {
            if task.attempt == 1 {
                panic!("out of cheese");
            }
            effect(&task, guard).await
        }
        .boxed()
    });
    let id = enqueue_one(&database.pool, new()).await;
    let worker = Beside::start(&database.pool, settings(), handler);
    assert_eq!(until(&database.pool, id, "done").await, 2);
    worker.stop().await;
    assert!(last_error(&database.pool, id).await.contains("out of cheese"));
}

#[tokio::test]
async fn a_task_whose_attempts_never_report_fails_after_its_limit() {
    let database = database().await;
    let id = enqueue_one(&database.pool, new()).await;
    // As two processes leave it that were killed in its attempt.
    let killed = "update messaging.task set status = 'running', token = gen_random_uuid(), attempts = 2, run_at = run_at - interval '1 s'";
    run(&database.pool, killed).await;
    let worker = Beside::start(&database.pool, Settings { attempts: 2, ..settings() }, Write);
    assert_eq!(until(&database.pool, id, "failed").await, 2);
    worker.stop().await;
    assert!(last_error(&database.pool, id).await.contains("did not report"));
    assert!(effects(&database.pool).await.is_empty());
}

#[tokio::test]
async fn a_cancelled_pending_task_never_runs() {
    let database = database().await;
    let ids = enqueue(&database.pool, &[new(), new()]).await;
    assert_eq!(operate::cancel(&database.pool, ids[0]).await.unwrap(), Verdict::Cancelled);
    let worker = Beside::start(&database.pool, settings(), Write);
    until(&database.pool, ids[1], "done").await;
    worker.stop().await;
    assert_eq!(state(&database.pool, ids[0]).await, ("cancelled".to_owned(), 0));
    each_once(&database.pool, &ids[1..]).await;
}

/// Both running tasks are asked to stop; one follows, the other is half-way and goes on.
#[tokio::test]
async fn a_running_task_decides_itself_whether_it_is_cancelled() {
    let (database, notes, gate) = (database().await, Notes::default(), Arc::new(Semaphore::new(0)));
    let (told, waits) = (notes.clone(), gate.clone());
    let handler = play(move |task, guard| {
        let (told, waits) = (told.clone(), waits.clone());
        async move {
            assert!(!guard.cancel_requested().await?);
            told.add("begins");
            waits.acquire().await.unwrap().forget();
            let requested = guard.cancel_requested().await?;
            told.add(requested);
            if requested && task.payload["place"] == 1 { Err(Stop::Cancelled) } else { Ok(()) }
        }
        .boxed()
    });
    let of = |place: i64| waybill_task::New::of(KIND, json!({ "place": place }));
    let ids = enqueue(&database.pool, &[of(1), of(2)]).await;
    let worker = Beside::start(&database.pool, settings(), handler);
    notes.until(2).await;
    for id in &ids {
        assert_eq!(operate::cancel(&database.pool, *id).await.unwrap(), Verdict::Requested);
    }
    gate.add_permits(2);
    until(&database.pool, ids[0], "cancelled").await;
    until(&database.pool, ids[1], "done").await;
    worker.stop().await;
    assert_eq!(notes.all()[2..], [json!(true), json!(true)]);
}

#[tokio::test]
async fn a_shutdown_waits_for_attempts_and_gives_back_what_does_not_end() {
    let (database, notes, gate) = (database().await, Notes::default(), Arc::new(Semaphore::new(0)));
    let (told, waits) = (notes.clone(), gate.clone());
    let handler = play(move |task, guard| {
        let (told, waits) = (told.clone(), waits.clone());
        async move {
            told.add("begins");
            match task.payload["place"].as_i64() {
                Some(1) => waits.acquire().await.unwrap().forget(),
                _ => std::future::pending().await,
            }
            effect(&task, guard).await
        }
        .boxed()
    });
    let of = |place: i64| waybill_task::New::of(KIND, json!({ "place": place }));
    let ids = enqueue(&database.pool, &[of(1), of(2)]).await;
    let settings = Settings { drain_timeout: Duration::from_millis(500), ..settings() };
    let worker = Beside::start(&database.pool, settings, handler);
    notes.until(2).await;
    let stopping = tokio::spawn(worker.stop());
    gate.add_permits(1);
    stopping.await.unwrap();
    each_once(&database.pool, &ids[..1]).await;
    assert_eq!(state(&database.pool, ids[0]).await, ("done".to_owned(), 1));
    assert_eq!(state(&database.pool, ids[1]).await, ("pending".to_owned(), 0), "as if it had not been tried");
}
