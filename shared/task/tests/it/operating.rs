//! What operators do.

use std::time::Duration;

use serde_json::json;
use waybill_task::operate::{self, Filter, Verdict};
use waybill_task::{New, Status, TaskId};

use crate::support::*;

async fn set(pool: &sqlx::PgPool, id: TaskId, status: &str) {
    let sql = "update messaging.task set status = $2, token = case when $2 = 'running' then gen_random_uuid() end, \
               last_error = 'why', attempts = 3 where id = $1";
    sqlx::query(sql).bind(id.as_uuid()).bind(status).execute(pool).await.unwrap();
}

async fn ids(pool: &sqlx::PgPool, filter: Filter) -> Vec<TaskId> {
    operate::list(pool, &filter).await.unwrap().into_iter().map(|task| task.id).collect()
}

#[tokio::test]
async fn tasks_are_listed_newest_first_by_state_kind_and_key_page_by_page() {
    let database = database().await;
    let pool = &database.pool;
    let mut new: Vec<New> = (0..6).map(|n| New::of(KIND, json!({ "n": n }))).collect();
    new[1] = New::of("other", json!({})).key("k");
    let mut made = enqueue(pool, &new).await;
    for (n, status) in [(2, "running"), (3, "failed"), (4, "failed"), (5, "done")] {
        set(pool, made[n], status).await;
    }
    made.reverse();
    assert_eq!(ids(pool, Filter::default()).await, made);
    let status = |status| Filter { status: Some(status), ..Filter::default() };
    assert_eq!(ids(pool, status(Status::Pending)).await, made[4..]);
    assert_eq!(ids(pool, status(Status::Running)).await, [made[3]]);
    assert_eq!(ids(pool, status(Status::Failed)).await, made[1..3]);
    assert_eq!(ids(pool, status(Status::Done)).await, [made[0]]);
    assert_eq!(ids(pool, Filter { kind: Some("other".into()), ..Filter::default() }).await, [made[4]]);
    assert_eq!(ids(pool, Filter { key: Some("k".into()), ..status(Status::Pending) }).await, [made[4]]);
    let page = |before| Filter { before, limit: 4, ..Filter::default() };
    assert_eq!(ids(pool, page(None)).await, made[..4]);
    assert_eq!(ids(pool, page(Some(made[3]))).await, made[4..]);
    let failed = &operate::list(pool, &status(Status::Failed)).await.unwrap()[0];
    assert_eq!((failed.attempts, failed.last_error.as_deref()), (3, Some("why")));
    assert_eq!(operate::payload(pool, made[5]).await.unwrap(), Some(json!({ "n": 0 })));
}

#[tokio::test]
async fn each_verb_answers_for_each_state() {
    use Status::{Cancelled, Done, Running};
    let database = database().await;
    let pool = &database.pool;
    for (status, retried, cancelled) in [
        ("pending", Verdict::Retried, Verdict::Cancelled),
        ("running", Verdict::Refused(Running), Verdict::Requested),
        ("done", Verdict::Refused(Done), Verdict::Refused(Done)),
        ("failed", Verdict::Retried, Verdict::Cancelled),
        ("cancelled", Verdict::Refused(Cancelled), Verdict::Refused(Cancelled)),
    ] {
        let ids = enqueue(pool, &[new(), new()]).await;
        for id in &ids {
            set(pool, *id, status).await;
        }
        assert_eq!(operate::retry(pool, ids[0]).await.unwrap(), retried, "{status}");
        assert_eq!(operate::cancel(pool, ids[1]).await.unwrap(), cancelled, "{status}");
        let seen = (state(pool, ids[0]).await, state(pool, ids[1]).await.0);
        let refused = |verdict| matches!(verdict, Verdict::Refused(_));
        let again = if refused(retried) { (status.to_owned(), 3) } else { ("pending".to_owned(), 0) };
        let ended = if cancelled == Verdict::Cancelled { "cancelled" } else { status };
        assert_eq!(seen, (again, ended.to_owned()), "{status}");
    }
    let unknown = TaskId::from(uuid::Uuid::now_v7());
    assert_eq!(operate::retry(pool, unknown).await.unwrap(), Verdict::Unknown);
    assert_eq!(operate::cancel(pool, unknown).await.unwrap(), Verdict::Unknown);
}

#[tokio::test]
async fn a_failed_task_runs_again_after_a_retry() {
    let database = database().await;
    let id = enqueue_one(&database.pool, new()).await;
    set(&database.pool, id, "failed").await;
    operate::retry(&database.pool, id).await.unwrap();
    let worker = Beside::start(&database.pool, settings(), Write);
    assert_eq!(until(&database.pool, id, "done").await, 1);
    worker.stop().await;
}

#[tokio::test]
async fn the_purge_takes_what_is_over_in_bounded_steps() {
    let database = database().await;
    let pool = &database.pool;
    let made = enqueue(pool, &vec![new(); 1_210]).await;
    run(pool, "update messaging.task set status = 'done'").await;
    for (n, status) in [(0, "failed"), (1, "pending"), (2, "running"), (3, "cancelled")] {
        set(pool, made[n], status).await;
    }
    let kept = Duration::from_secs(3 * 86_400);
    assert_eq!(operate::purge(pool, kept).await.unwrap(), 0);
    step_clock(pool, "2 days 23 hours").await;
    assert_eq!(operate::purge(pool, kept).await.unwrap(), 0);
    step_clock(pool, "3 days 1 minute").await;
    let mut other = pool.begin().await.unwrap();
    let held = "select id from messaging.task where id = $1 for update";
    sqlx::query(held).bind(made[9].as_uuid()).execute(&mut *other).await.unwrap();
    let mut steps = Vec::new();
    for _ in 0..3 {
        steps.push(operate::purge(pool, kept).await.unwrap());
    }
    assert_eq!(steps, [1_000, 206, 0], "without the locked one");
    other.rollback().await.unwrap();
    assert_eq!(operate::purge(pool, kept).await.unwrap(), 1);
    let mut left: Vec<TaskId> = ids(pool, Filter::default()).await;
    left.reverse();
    assert_eq!(left, made[..3]);
}
