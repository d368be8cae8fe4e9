//! How PostgreSQL runs the fetch, whatever its statistics say.

use sqlx::{AssertSqlSafe, PgConnection};
use waybill_relay::source::store::SESSION;
use waybill_testkit::Database;

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
    let (buckets, afters, takes) = (list(&|bucket| bucket), list(&|_| after), list(&|_| 8));
    let (floors, known) = (list(&|_| 0), list(&|_| -1));
    run(connection, format!("set plan_cache_mode = {mode}")).await;
    let explain = format!(
        "explain execute relay_fetch({buckets}, {afters}, {takes}, '{{}}', 1000000, {floors}, {known}, 0)"
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
            "prepare relay_fetch (smallint[], bigint[], bigint[], text[], bigint, bigint[], bigint[], bigint) as {FETCH}"
        ),
    )
    .await;
    let empty = "truncate messaging.outbox; analyze messaging.outbox";
    let backlog = "insert into messaging.outbox (id, bucket, aggregatetype, aggregateid, type, topic, payload)
        select gen_random_uuid(), n % 64, 'order', n::text, 't', 'orders.v1', '\\x00' from generate_series(1, 50000) n;
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
