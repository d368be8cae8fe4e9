//! How PostgreSQL runs the fetch, whatever its statistics say.

use sqlx::{AssertSqlSafe, PgConnection};
use waybill_relay::source::store::SESSION;
use waybill_testkit::Database;

const SAMPLE: &str = include_str!("../../src/source/store/sample.sql");
const LOWEST: &str = include_str!("../../src/source/store/lowest.sql");
const BELOW: &str = include_str!("../../src/source/store/below.sql");
const PURGE: &str = include_str!("../../src/source/store/purge.sql");
const FETCH: &str = include_str!("../../src/source/store/fetch.sql");

async fn run(connection: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(connection).await.expect("runs");
}

/// The plan of a fetch of all buckets, above cursors at `after`.
async fn plan(connection: &mut PgConnection, after: i64, mode: &str) -> String {
    let list = |value: &dyn Fn(i64) -> i64| {
        let values: Vec<String> = (0..64).map(|bucket| value(bucket).to_string()).collect();
        format!("'{{{}}}'", values.join(","))
    };
    let (buckets, afters, takes, bytes) =
        (list(&|bucket| bucket), list(&|_| after), list(&|_| 8), list(&|_| 1_000_000));
    let (floors, known) = (list(&|_| 0), list(&|_| -1));
    run(connection, format!("set plan_cache_mode = {mode}")).await;
    let explain = format!(
        "explain execute relay_fetch({buckets}, {afters}, {takes}, '{{}}', {bytes}, {floors}, {known}, 0, '{{}}')"
    );
    let lines: Vec<String> =
        sqlx::query_scalar(AssertSqlSafe(explain)).fetch_all(connection).await.expect("plan");
    lines.join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fetch_goes_by_the_index_and_sorts_nothing_whatever_the_statistics() {
    let database = Database::create(&[waybill_outbox::migrator()]).await;
    let mut connection = database.pool.acquire().await.expect("connection");
    for (name, value) in SESSION {
        run(&mut connection, format!("set {name} = '{value}'")).await;
    }
    run(
        &mut connection,
        format!(
            "prepare relay_fetch (smallint[], bigint[], bigint[], text[], bigint[], bigint[], bigint[], bigint, text[]) as {FETCH}"
        ),
    )
    .await;
    let empty = "truncate messaging.outbox; analyze messaging.outbox";
    let backlog = "insert into messaging.outbox (id, bucket, aggregatetype, aggregateid, type, topic, payload)
        select gen_random_uuid(), n % 64, 'order', n::text, 't', 'orders.v1', '\\x00' from generate_series(1, 120000) n;
        analyze messaging.outbox";
    let sent = "update messaging.outbox set sent_at = now(); analyze messaging.outbox";
    let one =
        "update messaging.outbox set sent_at = null where seq = (select max(seq) from messaging.outbox)";
    for statistics in [empty, backlog, sent, one] {
        run(&mut connection, statistics.to_owned()).await;
        for mode in ["force_generic_plan", "force_custom_plan"] {
            for after in [0, 20_000] {
                let plan = plan(&mut connection, after, mode).await;
                for bad in ["Seq Scan on outbox", "outbox_pkey", "Bitmap", "Sort", "Hash", "Merge", "JIT"] {
                    assert!(!plan.contains(bad), "{bad} after {statistics:?} with {mode}:\n{plan}");
                }
                assert_eq!(plan.matches("Index Cond: ((ROW(bucket, seq) > ROW(page").count(), 2, "{plan}");
            }
        }
    }
}

/// A database with the relay's settings, and its connection.
async fn prepared() -> (Database, sqlx::pool::PoolConnection<sqlx::Postgres>) {
    let database = Database::create(&[waybill_outbox::migrator()]).await;
    let mut connection = database.pool.acquire().await.expect("connection");
    for (name, value) in SESSION.into_iter().filter(|(name, _)| *name != "statement_timeout") {
        run(&mut connection, format!("set {name} = '{value}'")).await;
    }
    for (name, types, statement) in [
        (
            "fetch",
            "smallint[], bigint[], bigint[], text[], bigint[], bigint[], bigint[], bigint, text[]",
            FETCH,
        ),
        ("sample", "smallint[], bigint", SAMPLE),
        ("lowest", "smallint[], bigint[], text[], bigint, text[]", LOWEST),
        ("below", "smallint[], bigint[], text[], bigint, text[]", BELOW),
        ("purge", "bigint, double precision", PURGE),
    ] {
        run(&mut connection, format!("prepare relay_{name} ({types}) as {statement}")).await;
    }
    (database, connection)
}

async fn fill(connection: &mut PgConnection, rows: i64) {
    let statement = format!(
        "insert into messaging.outbox (id, bucket, aggregatetype, aggregateid, type, topic, payload, created_at)
         select gen_random_uuid(), n % 64, 'order', n::text, 't', 'orders.v1', '\\x00', now() - interval '9 days'
         from generate_series(1, {rows}) n; analyze messaging.outbox"
    );
    run(connection, statement).await;
}

fn all(value: impl Fn(i64) -> i64) -> String {
    let values: Vec<String> = (0..64).map(|bucket| value(bucket).to_string()).collect();
    format!("'{{{}}}'", values.join(","))
}

/// The plan as it ran, and the buffers that it touched.
async fn touched(connection: &mut PgConnection, call: &str) -> (String, i64) {
    let explain = format!("explain (analyze, buffers, costs off, timing off) execute {call}");
    let lines: Vec<String> =
        sqlx::query_scalar(AssertSqlSafe(explain)).fetch_all(connection).await.expect("plan");
    let plan = lines.join("\n");
    let buffers = lines.iter().find(|line| line.trim_start().starts_with("Buffers:")).expect("buffers");
    let count = |word: &str| -> i64 {
        let found = buffers.split_whitespace().find_map(|part| part.strip_prefix(word));
        found.and_then(|number| number.parse().ok()).unwrap_or(0)
    };
    let total = count("hit=") + count("read=");
    (plan, total)
}

fn fetch_from(floor: i64) -> String {
    let (buckets, floors, takes, known) = (all(|b| b), all(|_| floor), all(|_| 8), all(|_| -1));
    let bytes = all(|_| 1_000_000);
    format!("relay_fetch({buckets}, {floors}, {takes}, '{{}}', {bytes}, {floors}, {known}, 0, '{{}}')")
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_a_long_snapshot_a_fetch_from_the_floor_touches_a_few_pages_and_one_from_the_start_all() {
    let (database, mut connection) = prepared().await;
    fill(&mut connection, 100_000).await;
    let mut snapshot = database.pool.begin().await.expect("begins");
    sqlx::raw_sql("set transaction isolation level repeatable read; select count(*) from messaging.outbox")
        .execute(&mut *snapshot)
        .await
        .expect("reads");
    run(&mut connection, "update messaging.outbox set sent_at = now()".to_owned()).await;
    fill(&mut connection, 64).await;
    let (_, from_start) = touched(&mut connection, &fetch_from(0)).await;
    let (plan, from_floor) = touched(&mut connection, &fetch_from(100_000)).await;
    println!("{from_start} buffers from the start, {from_floor} from the floor");
    assert!(from_floor < 1_500 && from_start > 10 * from_floor, "{from_floor} of {from_start}:\n{plan}");
    snapshot.rollback().await.expect("ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_relays_other_statements_go_by_index_too_and_cost_the_same_at_any_backlog() {
    let (_database, mut connection) = prepared().await;
    let (buckets, zero, most) = (all(|b| b), all(|_| 0), all(|_| 1_000_000));
    let calls = [
        ("sample", format!("relay_sample({buckets}, 10000)"), 25_000),
        ("lowest", format!("relay_lowest({buckets}, {zero}, '{{}}', 1, '{{}}')"), 1_500),
        ("below", format!("relay_below({buckets}, {most}, '{{}}', 10, '{{}}')"), 3_500),
        // What it deletes is counted too: each row with its entry in the primary key.
        ("purge", "relay_purge(0, 86400)".to_owned(), 12_000),
    ];
    for rows in [0, 1_000, 100_000] {
        run(
            &mut connection,
            "truncate messaging.outbox restart identity; analyze messaging.outbox".to_owned(),
        )
        .await;
        fill(&mut connection, rows).await;
        for (name, call, most) in &calls {
            let (plan, buffers) = touched(&mut connection, call).await;
            println!("{name} at {rows} unsent rows: {buffers} buffers");
            assert!(buffers < *most, "{name} at {rows}: {buffers}\n{plan}");
            for bad in ["Seq Scan on outbox o", "Bitmap", "Hash", "Merge", "JIT"] {
                assert!(!plan.contains(bad), "{bad} in {name} at {rows}:\n{plan}");
            }
            assert!(
                *name != "lowest" || rows == 0 || plan.contains("Index Cond: ((ROW(bucket, seq) > ROW(p"),
                "{plan}"
            );
        }
    }
    run(&mut connection, "update messaging.outbox set sent_at = now() - interval '5 days'".to_owned()).await;
    let (plan, buffers) = touched(&mut connection, "relay_purge(0, 86400)").await;
    println!("purge of 1,000 of 100,000 rows: {buffers} buffers");
    assert!(buffers < 12_000, "{buffers}\n{plan}");
}
