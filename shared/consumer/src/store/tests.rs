//! What the statements read with a plan that was made when the table was young.

use chrono::{TimeDelta, Utc};
use sqlx::{PgConnection, postgres::types::PgInterval};
use uuid::Uuid;
use waybill_testkit::Database;

use super::*;

const GROUP: &str = "group";
/// Enough that a plan is kept, whatever the values.
const PLANNED: usize = 8;
const ROWS: i32 = 20_000;

/// Rows and index entries of these tables that the transaction has read.
async fn read(tx: &mut PgConnection) -> i64 {
    sqlx::query_scalar(
        "select sum(pg_stat_get_xact_tuples_returned(c.oid))::bigint from pg_class c
         where c.relname in ('processed_message', 'processed_message_pkey')",
    )
    .fetch_one(tx)
    .await
    .unwrap()
}

async fn fill(tx: &mut PgConnection, rows: i32) {
    let insert = "insert into messaging.processed_message (consumer_group, message_id, outcome)
                  select 'group', gen_random_uuid(), 'done' from generate_series(1, $1)";
    sqlx::query(insert).bind(rows).execute(tx).await.unwrap();
}

/// Every statement that is given ids, once, and what it has read.
async fn all(tx: &mut PgConnection) -> Vec<(&'static str, i64)> {
    let (ids, mut reads) = ([Uuid::now_v7(), Uuid::now_v7()], Vec::new());
    macro_rules! reads {
        ($name:literal, $run:expr) => {
            let before = read(tx).await;
            $run.await.unwrap();
            reads.push(($name, read(tx).await - before));
        };
    }
    let candidate = |id, days| Candidate { id, made: Some(Utc::now() - TimeDelta::days(days)) };
    let day = PgInterval { months: 0, days: 1, microseconds: 0 };
    let candidates = vec![candidate(ids[0], 0), candidate(ids[1], 2)];
    reads!("claim", claim(tx, GROUP, candidates, day));
    reads!("unclaim", unclaim(tx, GROUP, &ids));
    reads!("claim_replay", claim_replay(tx, GROUP, ids[0], ids[1]));
    reads!("claim_replay again", claim_replay(tx, GROUP, ids[0], ids[1]));
    reads!("already_dead", already_dead(&mut *tx, GROUP, &ids));
    reads!("states", states(&mut *tx, GROUP, &ids));
    reads!("mark_dead", mark_dead(&mut *tx, GROUP, ids.to_vec()));
    reads
}

#[tokio::test]
async fn a_plan_made_before_the_first_vacuum_reads_no_more_of_a_large_table() {
    let database = Database::create(&[crate::migrator()]).await;
    let mut tx = database.pool.begin().await.unwrap();
    fill(&mut tx, 3).await;
    for _ in 0..PLANNED {
        all(&mut tx).await;
    }
    fill(&mut tx, ROWS).await;
    for (name, rows) in all(&mut tx).await {
        assert!(rows < 50, "{name} reads {rows} rows for two ids");
    }
}
