//! Messages that are begun and never end, and who may handle beside them.

use std::time::Duration;

use sqlx::postgres::types::PgInterval;
use tokio::time::timeout;
use uuid::Uuid;
use waybill_consumer::{
    Message,
    crash::{CrashCount, Entry, Gate, Mode, Verdict, purge},
    harness::Harness,
};
use waybill_event::MessageId;

use crate::{
    crash_count::{TOPIC, count, process, suspects},
    support::{Effects, GROUP, database, order},
};

#[tokio::test]
async fn a_clean_end_takes_back_its_own_time_and_not_those_that_crashed() {
    let database = database().await;
    let (pool, message) = (&database.pool, Uuid::now_v7());
    for crashed in 1..=3 {
        process().before(pool, message, None).await.unwrap();
        let clean = process();
        clean.before(pool, message, None).await.unwrap();
        clean.clean_end(pool).await.unwrap();
        assert_eq!(suspects(pool).await[&message], crashed);
    }
    assert_eq!(process().before(pool, message, None).await.unwrap(), Verdict::Crash);
}

/// A dead letter's end comes when the next message has long been begun.
#[tokio::test]
async fn a_clean_end_takes_back_what_was_begun_last_also_when_an_earlier_one_ends_after_it() {
    let database = database().await;
    let (pool, earlier, last) = (&database.pool, Uuid::now_v7(), Uuid::now_v7());
    let process = process();
    process.before(pool, earlier, None).await.unwrap();
    process.before(pool, last, None).await.unwrap();
    process.after(pool, earlier).await.unwrap();
    process.clean_end(pool).await.unwrap();
    assert!(suspects(pool).await.is_empty());
}

#[tokio::test]
async fn whatever_ends_in_order_is_no_suspect() {
    let database = database().await;
    let (pool, message) = (&database.pool, Uuid::now_v7());
    for _ in 0..10 {
        let process = process();
        assert_eq!(process.before(pool, message, None).await.unwrap(), Verdict::Handle);
        process.after(pool, message).await.unwrap();
    }
    for _ in 0..3 {
        assert_eq!(process().before(pool, message, None).await.unwrap(), Verdict::Handle);
    }
    let last = process();
    for _ in 0..3 {
        assert_eq!(last.before(pool, message, None).await.unwrap(), Verdict::Crash);
    }
    last.after(pool, message).await.unwrap();
    assert!(suspects(pool).await.is_empty());
}

/// Its effect is there: a dead letter beside it would be a second fate.
#[tokio::test]
async fn a_crash_behind_the_commit_is_not_held_against_the_message() {
    let database = database().await;
    let (pool, id) = (&database.pool, MessageId::new());
    for _ in 0..3 {
        process().before(pool, id.as_uuid(), None).await.unwrap();
    }
    let message = Message::new(order()).with_id(id);
    Harness::new(pool.clone(), GROUP).deliver(&Effects::default(), vec![message]).await.unwrap();
    let next = process();
    assert_eq!(next.before(pool, id.as_uuid(), None).await.unwrap(), Verdict::Handle);
    next.after(pool, id.as_uuid()).await.unwrap();
    assert!(suspects(pool).await.is_empty());
}

#[tokio::test]
async fn a_replay_is_counted_by_itself_and_its_dead_row_does_not_hide_it() {
    let database = database().await;
    let (pool, id) = (&database.pool, Uuid::now_v7());
    for _ in 0..4 {
        process().before(pool, id, None).await.unwrap();
    }
    let row = "insert into messaging.processed_message values ($1, $2, now(), 'dead')";
    sqlx::query(row).bind(GROUP).bind(id).execute(pool).await.unwrap();
    // Delivered once more, its own row skips it.
    assert_eq!(process().before(pool, id, None).await.unwrap(), Verdict::Handle);
    for replay in [Uuid::now_v7(), Uuid::now_v7()] {
        for verdict in [Verdict::Handle, Verdict::Handle, Verdict::Handle, Verdict::Crash] {
            assert_eq!(process().before(pool, id, Some(replay)).await.unwrap(), verdict);
        }
    }
}

#[tokio::test]
async fn a_parked_message_that_was_begun_in_a_crash_is_handled_alone() {
    let database = database().await;
    let (pool, id) = (&database.pool, Uuid::now_v7());
    let drain = || CrashCount::new(GROUP, "park", -1);
    assert_eq!(drain().suspects(pool, id).await.unwrap(), Mode::Normal);
    drain().before(pool, id, None).await.unwrap();
    let next = drain();
    assert_eq!(next.suspects(pool, id).await.unwrap(), Mode::Suspect);
    next.before(pool, id, None).await.unwrap();
    next.after(pool, id).await.unwrap();
    assert_eq!(next.suspects(pool, id).await.unwrap(), Mode::Normal);
    assert_eq!(count(pool, "consumer_start").await, 0);
}

#[tokio::test]
async fn batches_pass_the_gate_together_and_a_suspect_message_alone() {
    let gate = Gate::default();
    let closed = async |mode| timeout(Duration::from_millis(20), gate.enter(mode)).await.is_err();
    let (one, two) = (gate.enter(Mode::Normal).await, gate.enter(Mode::Normal).await);
    assert!(closed(Mode::Suspect).await, "two batches are under way");
    assert!(!closed(Mode::Normal).await, "who gave up holds nobody off");
    let suspect = tokio::spawn({
        let gate = gate.clone();
        async move { gate.enter(Mode::Suspect).await }
    });
    tokio::task::yield_now().await;
    assert!(closed(Mode::Normal).await, "nobody overtakes it");
    drop((one, two));
    let alone = suspect.await.unwrap();
    assert!(matches!(alone, Entry::Alone(_)));
    assert!(closed(Mode::Normal).await && closed(Mode::Suspect).await);
    drop(alone);
    assert!(!closed(Mode::Suspect).await);
}

#[tokio::test]
async fn rows_that_nothing_touches_any_more_are_purged_in_steps() {
    let database = database().await;
    let pool = &database.pool;
    for partition in 0..5 {
        CrashCount::new(GROUP, TOPIC, partition).begin(pool, 0, 1).await.unwrap();
        process().before(pool, Uuid::now_v7(), None).await.unwrap();
    }
    let old = "update messaging.consumer_start set started_at = now() - interval '15 days' where partition < 4; \
               update messaging.suspect set begun_at = now() - interval '15 days' \
               where message_id in (select message_id from messaging.suspect limit 3)";
    sqlx::raw_sql(old).execute(pool).await.unwrap();
    let fortnight = PgInterval { months: 0, days: 14, microseconds: 0 };
    let mut steps = Vec::new();
    for _ in 0..4 {
        steps.push(purge(pool, fortnight, 2).await.unwrap());
    }
    assert_eq!(steps, [2 + 2, 2 + 1, 0, 0]);
    assert_eq!((count(pool, "consumer_start").await, suspects(pool).await.len()), (1, 2));
}
