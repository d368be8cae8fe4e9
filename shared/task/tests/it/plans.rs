//! How PostgreSQL runs the worker's statements in the worker's sessions, whatever its statistics say.

use sqlx::{AssertSqlSafe, PgConnection, PgPool};
use waybill_task::probe;
use waybill_testkit::Database;

/// Arguments of the two claims.
const DUE: &str = "'{work}', '{12}', 120, 8, null, null";
const END: &str = "null, null";
const SAMPLE: &str = "10000";
const HEARTBEAT: &str = "'018f0000-0000-7000-8000-000000000001', '018f0000-0000-7000-8000-000000000002', 120";
const NAMED: &str = "'{work}', '{12}', 120, 8, '{018f0000-0000-7000-8000-000000000001,018f0000-0000-7000-8000-000000000002}', '{key-1,key-2}'";

async fn run(connection: &mut PgConnection, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(connection).await.unwrap();
}

/// Name of the prepared statement that contains a text.
async fn prepared(connection: &mut PgConnection, text: &str) -> String {
    sqlx::query_scalar(
        "select name from pg_prepared_statements where strpos(statement, $1) > 0 and name <> ''",
    )
    .bind(text)
    .fetch_one(connection)
    .await
    .unwrap()
}

async fn plan(connection: &mut PgConnection, name: &str, arguments: &str) -> String {
    let explain = format!("explain execute {name}({arguments})");
    let lines: Vec<String> = sqlx::query_scalar(AssertSqlSafe(explain)).fetch_all(connection).await.unwrap();
    lines.join("\n")
}

fn insert(what: &str, from: i64, to: i64) -> String {
    format!(
        "insert into messaging.task (id, kind, key, payload, status, run_at)
         select gen_random_uuid(), 'work', {what} from generate_series({from}, {to}) n"
    )
}

#[tokio::test]
async fn claims_go_by_the_index_and_sort_nothing_whatever_the_statistics() {
    let database = Database::create(&[waybill_task::migrator()]).await;
    let pool = probe::prepared(&database.pool).await.unwrap();
    let mut connection = pool.acquire().await.unwrap();
    let mut statements = Vec::new();
    for (text, arguments, index) in [
        ("skip locked", DUE, "task_due_idx"),
        ("unnest($6", NAMED, "task_key_idx"),
        ("offset 499", END, "task_due_idx"),
        ("union all", SAMPLE, "task_due_idx"),
        ("as \"requested!\"", HEARTBEAT, "task_pkey"),
    ] {
        statements.push((prepared(&mut connection, text).await, arguments, index));
    }
    let analyze = "; analyze messaging.task";
    for (statistics, name) in [
        (format!("truncate messaging.task{analyze}"), "empty"),
        (insert("null, '{}', 'pending', now()", 1, 50_000), "stale"),
        (
            insert("'key-' || n % 100, '{}', 'pending', now() + interval '1 hour'", 1, 50_000) + analyze,
            "backlog",
        ),
        (format!("update messaging.task set status = 'done'{analyze}"), "all done"),
        (insert("'key-1', '{}', 'pending', now()", 1, 10), "few among many"),
    ] {
        run(&mut connection, &statistics).await;
        for mode in ["force_generic_plan", "force_custom_plan"] {
            run(&mut connection, &format!("set plan_cache_mode = {mode}")).await;
            for (statement, arguments, index) in &statements {
                // Groups of kinds are few.
                let plan = plan(&mut connection, statement, arguments).await.replace("HashAggregate", "");
                for bad in ["Seq Scan", "Bitmap", "Sort", "Hash", "Merge", "JIT", "Join Filter"] {
                    assert!(!plan.contains(bad), "{bad} with {name} statistics and {mode}:\n{plan}");
                }
                let scans = plan.matches(" on task").count() - plan.matches("Update on task").count();
                // The sample reads two indexes from the front; all others look something up.
                let sampled = ["task_due_idx", "task_failed_idx"].iter().all(|index| plan.contains(index));
                let looked_up = if sampled { 0 } else { scans.max(1) };
                assert_eq!(plan.matches("Index Cond").count(), looked_up, "{name}, {mode}:\n{plan}");
                assert!(plan.contains(&format!("using {index} on task")), "{name}, {mode}:\n{plan}");
                if !index.contains("due") {
                    assert!(!plan.contains("task_due_idx"), "walks the backlog: {name}, {mode}:\n{plan}");
                }
            }
        }
    }
}

/// Buffers that the claim touches, from its plan with `analyze`.
async fn buffers(pool: &PgPool, name: &str, arguments: &str) -> (usize, f64) {
    let explain = format!("explain (analyze, buffers, format json) execute {name}({arguments})");
    let mut tx = pool.begin().await.unwrap();
    let plan: serde_json::Value =
        sqlx::query_scalar(AssertSqlSafe(explain)).fetch_one(&mut *tx).await.unwrap();
    tx.rollback().await.unwrap();
    let root = &plan[0]["Plan"];
    let touched = root["Shared Hit Blocks"].as_u64().unwrap() + root["Shared Read Blocks"].as_u64().unwrap();
    (touched as usize, plan[0]["Execution Time"].as_f64().unwrap())
}

/// The price of a claim does not grow with what is done, not due yet, or due and blocked by its key.
#[tokio::test]
async fn a_claim_among_a_hundred_thousand_touches_a_few_pages() {
    let database = Database::create(&[waybill_task::migrator()]).await;
    let pool = &probe::prepared(&database.pool).await.unwrap();
    let due = prepared(&mut pool.acquire().await.unwrap(), "skip locked").await;
    for (rows, name) in [
        (insert("null, '{}', 'done', now()", 1, 100_000), "done"),
        (insert("'key-' || n, '{}', 'pending', now() + interval '1 hour'", 1, 100_000), "not due"),
        (insert("'due-' || n, '{}', 'pending', now()", 1, 100_000), "due"),
    ] {
        run(&mut pool.acquire().await.unwrap(), &rows).await;
        let (touched, millis) = buffers(pool, &due, DUE).await;
        println!("100,000 {name}: {touched} pages, {millis:.2} ms");
        assert!(touched < 500, "{name}: {touched} pages");
    }
    run(&mut pool.acquire().await.unwrap(), "truncate messaging.task").await;
    let blocked = insert("'one', '{}', 'pending', now()", 1, 100_001)
        + "; update messaging.task set run_at = now() + interval '1 hour' where seq = (select min(seq) from messaging.task)";
    run(&mut pool.acquire().await.unwrap(), &blocked).await;
    let (touched, millis) = buffers(pool, &due, DUE).await;
    println!("100,000 due behind one key: {touched} pages, {millis:.2} ms");
    assert!(touched < 10_000, "{touched} pages");
}
