//! Crashes after the claim and before the end is written. Alone in a process of its own, because fail points are the
//! process's; needs the feature `failpoints`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "../it/support.rs"]
#[allow(dead_code, reason = "shared with the other target")]
mod support;

use futures::FutureExt;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use waybill_task::{Error, Worker};

use support::*;

#[tokio::test]
async fn a_crash_at_any_point_leaves_a_task_that_runs_after_its_lease() {
    let scenario = fail::FailScenario::setup();
    for (point, handled) in [("task.after_claim", 0), ("task.before_complete", 1)] {
        let (database, notes) = (database().await, Notes::default());
        let handler = || {
            let told = notes.clone();
            play(move |task, _| {
                told.add(json!(task.attempt));
                async { Ok(()) }.boxed()
            })
        };
        let ids = enqueue(&database.pool, &[new().key("k"), new().key("k")]).await;
        fail::cfg(point, "1*panic->off").unwrap();
        let worker = Worker::builder(database.pool.clone(), settings()).on(KIND, handler()).build().unwrap();
        // The panic tears the whole worker down, as a kill would.
        let crashed = tokio::spawn(worker.run(CancellationToken::new())).await;
        assert!(matches!(crashed, Err(_) | Ok(Err(Error::Worker(_)))), "{crashed:?}");
        assert_eq!(notes.all().len(), handled, "{point}");
        assert_eq!(state(&database.pool, ids[0]).await, ("running".to_owned(), 1), "{point}");

        let worker = Beside::start(&database.pool, settings(), handler());
        let witness = enqueue_one(&database.pool, new()).await;
        until(&database.pool, witness, "done").await;
        assert_eq!(
            state(&database.pool, ids[0]).await,
            ("running".to_owned(), 1),
            "{point}: its lease holds"
        );
        assert_eq!(
            state(&database.pool, ids[1]).await,
            ("pending".to_owned(), 0),
            "{point}: nothing passes it"
        );
        step_clock(&database.pool, "121 seconds").await;
        assert_eq!(until(&database.pool, ids[0], "done").await, 2, "{point}");
        assert_eq!(until(&database.pool, ids[1], "done").await, 1, "{point}");
        worker.stop().await;
    }
    scenario.teardown();
}

/// The effect and the end of the task are one transaction: a crash before its commit leaves neither.
#[tokio::test]
async fn a_crash_before_a_guarded_commit_leaves_no_effect() {
    let scenario = fail::FailScenario::setup();
    let database = database().await;
    let id = enqueue_one(&database.pool, new()).await;
    fail::cfg("task.before_complete", "1*panic->off").unwrap();
    let worker = Beside::start(&database.pool, settings(), Write);
    assert_eq!(until(&database.pool, id, "done").await, 2);
    worker.stop().await;
    each_once(&database.pool, &[id]).await;
    scenario.teardown();
}
