//! Crashes around the commit, with the effect and the offset still apart. Alone in a process of its own, because fail
//! points are the process's; needs the feature `failpoints`.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

#[path = "../it/support.rs"]
#[allow(dead_code, reason = "shared with the other target")]
mod support;

use std::time::Duration;

use waybill_consumer::{Consumer, Error};
use waybill_testkit::eventually;

use support::{
    Effects, Running, Source, database, each, effects, ids, inbox, orders, settings, topics, until_committed,
};

/// Fail points are the process's.
static ALONE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn a_crash_on_either_side_of_the_commit_has_one_effect() {
    let _alone = ALONE.lock().await;
    let scenario = fail::FailScenario::setup();
    for (point, committed) in [("consumer.before_commit", false), ("consumer.after_commit", true)] {
        let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
        let sent = orders(5);
        Source::new(&topics).orders(0, &sent).await;
        let settings = settings(&topics);
        fail::cfg(point, "1*panic->off").unwrap();
        let consumer = Consumer::builder(database.pool.clone(), settings.clone())
            .subscribe(each(&handler))
            .build()
            .unwrap();
        let crashed = consumer.run(tokio_util::sync::CancellationToken::new()).await;
        assert!(matches!(crashed, Err(Error::Worker { .. })), "{crashed:?}");
        let written = effects(&database.pool).await.len();
        assert_eq!((written > 0, inbox(&database.pool).await.len()), (committed, written), "{point}");
        assert_eq!(topics.committed(support::GROUP, "orders.v1", 0).await, None, "{point}");

        let running = Running::start(&database.pool, settings, each(&handler));
        until_committed(&topics, 0, 5).await;
        assert_eq!(effects(&database.pool).await, ids(&sent), "{point}");
        running.stop().await;
    }
    scenario.teardown();
}

/// K2, K16: the client's own races leave a partition paused for ever, and say nothing.
#[tokio::test]
async fn a_partition_whose_resume_was_lost_is_noticed_and_moved() {
    let _alone = ALONE.lock().await;
    let scenario = fail::FailScenario::setup();
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let sent = orders(3_000);
    Source::new(&topics).orders(0, &sent).await;
    let mut settings = settings(&topics);
    (settings.batch_size, settings.buffer_records) = (10, 20);
    settings.watchdog_interval = Duration::from_millis(500);
    // The first call is the assignment's; the second is the first resume of the full buffer.
    fail::cfg("consumer.resume_is_lost", "1*off->1*return->off").unwrap();
    let running = Running::start(&database.pool, settings, each(&handler));
    let stalled = async || running.status.blocked().pop().ok_or("nothing is blocked");
    assert_eq!(eventually(stalled).await.reason, waybill_consumer::metrics::STALLED);
    until_committed(&topics, 0, 3_000).await;
    assert_eq!(effects(&database.pool).await, ids(&sent));
    eventually(async || if running.status.blocked().is_empty() { Ok(()) } else { Err("stalled") }).await;
    running.stop().await;
    scenario.teardown();
}
