//! Starts of a partition: which count, and what they cost.

use std::{collections::HashMap, time::Duration};

use sqlx::PgPool;
use tokio::time::timeout;
use uuid::Uuid;
use waybill_consumer::crash::{CrashCount, Mode, Verdict};

use crate::{
    crash_count::{TOPIC, count, process, suspects},
    support::{GROUP, database},
};

/// Starts at this offset with a batch of ten.
async fn start(pool: &PgPool, first: i64) -> (CrashCount, Mode) {
    let process = process();
    let mode = process.begin(pool, first, first + 10).await.unwrap();
    (process, mode)
}

#[tokio::test]
async fn the_third_start_at_one_offset_makes_suspect_and_another_offset_begins_again() {
    let database = database().await;
    let pool = &database.pool;
    for (first, mode) in [
        (5, Mode::Normal),
        (5, Mode::Normal),
        (6, Mode::Normal),
        (6, Mode::Normal),
        (6, Mode::Suspect),
        // A part of the suspect range was finished: still the same story.
        (9, Mode::Suspect),
        (15, Mode::Suspect),
        // Behind it.
        (16, Mode::Normal),
        (16, Mode::Normal),
        (16, Mode::Suspect),
        // The group was set back.
        (0, Mode::Normal),
    ] {
        assert_eq!(start(pool, first).await.1, mode, "{first}");
    }
    let other = CrashCount::new(GROUP, TOPIC, 1);
    assert_eq!(other.begin(pool, 16, 17).await.unwrap(), Mode::Normal);
    assert_eq!(count(pool, "consumer_start").await, 2, "one row per partition");
}

#[tokio::test]
async fn a_clean_end_is_no_crash_wherever_it_cuts() {
    let database = database().await;
    let pool = &database.pool;
    for _ in 0..5 {
        let (process, mode) = start(pool, 5).await;
        assert_eq!(mode, Mode::Normal);
        process.clean_end(pool).await.unwrap();
    }
    let message = Uuid::now_v7();
    for _ in 0..3 {
        start(pool, 5).await;
    }
    for _ in 0..5 {
        let (process, mode) = start(pool, 5).await;
        assert_eq!(mode, Mode::Suspect);
        assert_eq!(process.before(pool, message, None).await.unwrap(), Verdict::Handle);
        // Its handler is cut off by a revoke; the row of the start is put back, to stay suspect.
        process.clean_end(pool).await.unwrap();
        assert!(suspects(pool).await.is_empty());
        for _ in 0..3 {
            start(pool, 5).await;
        }
    }
}

#[tokio::test]
async fn normal_mode_comes_back_behind_the_range_and_not_before_its_commit() {
    let database = database().await;
    let pool = &database.pool;
    start(pool, 5).await;
    start(pool, 5).await;
    let (process, mode) = start(pool, 5).await;
    assert_eq!(mode, Mode::Suspect);
    for (committed, mode) in [(-1, Mode::Suspect), (14, Mode::Suspect), (15, Mode::Normal)] {
        assert_eq!(process.progressed(pool, committed).await.unwrap(), mode, "{committed}");
    }
    assert_eq!(count(pool, "consumer_start").await, 0);
}

#[tokio::test]
async fn a_start_counts_until_its_offset_is_committed() {
    let database = database().await;
    let pool = &database.pool;
    for _ in 0..2 {
        let (process, mode) = start(pool, 5).await;
        assert_eq!(mode, Mode::Normal);
        // Nothing was acknowledged in this assignment, or the very offset at which it began.
        process.progressed(pool, -1).await.unwrap();
        process.progressed(pool, 5).await.unwrap();
    }
    let (process, mode) = start(pool, 5).await;
    assert_eq!(mode, Mode::Suspect);
    process.clean_end(pool).await.unwrap();
    let (process, _) = start(pool, 5).await;
    process.progressed(pool, 6).await.unwrap();
    assert_eq!(count(pool, "consumer_start").await, 0);
}

/// A closed pool refuses every statement.
#[tokio::test]
async fn normal_work_makes_one_statement_at_the_first_batch_and_one_at_the_first_commit() {
    let database = database().await;
    let (pool, closed) = (&database.pool, PgPool::connect_lazy(&database.url).unwrap());
    closed.close().await;
    let process = process();
    assert!(process.begin(&closed, 5, 10).await.is_err(), "the first batch");
    assert_eq!(process.begin(pool, 5, 10).await.unwrap(), Mode::Normal);
    for next in 10..200 {
        process.begin(&closed, next, next + 1).await.unwrap();
        process.progressed(&closed, 5).await.unwrap();
    }
    assert!(process.progressed(&closed, 6).await.is_err(), "the first commit");
    process.progressed(pool, 6).await.unwrap();
    for next in 10..200 {
        process.begin(&closed, next, next + 1).await.unwrap();
        process.progressed(&closed, next).await.unwrap();
    }
    process.clean_end(&closed).await.unwrap();
}

#[tokio::test]
async fn a_statement_whose_answer_was_lost_counts_once() {
    let database = database().await;
    let (pool, message) = (&database.pool, Uuid::now_v7());
    start(pool, 5).await;
    let process = process();
    process.before(pool, message, None).await.unwrap();
    let lock = "lock messaging.consumer_start, messaging.suspect in share mode";
    for _ in 0..5 {
        let mut other = pool.begin().await.unwrap();
        sqlx::raw_sql(lock).execute(&mut *other).await.unwrap();
        // The server goes on with what it was sent.
        let given_up = timeout(Duration::from_millis(50), process.begin(pool, 5, 15)).await;
        assert!(given_up.is_err());
        let given_up = timeout(Duration::from_millis(50), process.before(pool, message, None)).await;
        assert!(given_up.is_err());
        other.rollback().await.unwrap();
    }
    assert_eq!(process.begin(pool, 5, 15).await.unwrap(), Mode::Normal, "the second start");
    assert_eq!(process.before(pool, message, None).await.unwrap(), Verdict::Handle);
    assert_eq!(suspects(pool).await[&message], 1);
}

#[tokio::test]
async fn a_late_assignment_takes_nothing_back_from_its_successor() {
    let database = database().await;
    let (pool, message) = (&database.pool, Uuid::now_v7());
    let (late, _) = start(pool, 5).await;
    late.before(pool, message, None).await.unwrap();
    let (successor, _) = start(pool, 5).await;
    successor.before(pool, message, None).await.unwrap();
    late.progressed(pool, 100).await.unwrap();
    late.clean_end(pool).await.unwrap();
    assert_eq!((count(pool, "consumer_start").await, suspects(pool).await[&message]), (1, 2));
}

#[tokio::test]
async fn its_own_statements_fail_without_counting() {
    let database = database().await;
    let (pool, message) = (&database.pool, Uuid::now_v7());
    let closed = PgPool::connect_lazy(&database.url).unwrap();
    closed.close().await;
    let process = process();
    for _ in 0..5 {
        assert!(process.begin(&closed, 5, 15).await.is_err());
        assert!(process.before(&closed, message, None).await.is_err());
    }
    assert_eq!(process.begin(pool, 5, 15).await.unwrap(), Mode::Normal);
    process.before(pool, message, None).await.unwrap();
    assert_eq!(suspects(pool).await, HashMap::from([(message, 1)]));
}
