//! The frame of the examples: addresses, the outbox, and what to print.

use anyhow::Context;
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use waybill_outbox::{DEFAULT_MAX_BYTES, Hint, Outbox};

/// Connects to the database of the argument, else of `DATABASE_URL`; makes the outbox and the example's table
/// where they are missing. A service does both with its own migrations, before it starts.
pub(crate) async fn open(table: &'static str) -> anyhow::Result<(PgPool, Outbox)> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("DATABASE_URL").ok());
    let url = url.context("give a database as the argument or in DATABASE_URL")?;
    let pool = PgPool::connect(&url).await.context("the database cannot be reached")?;
    waybill_outbox::migrator().run(&pool).await.context("the outbox's migrations")?;
    sqlx::raw_sql(table).execute(&pool).await.context("the example's table")?;
    // One bell for each process and database. A service stops it with its own shutdown.
    let hint = Hint::start(url.parse()?, CancellationToken::new());
    let prefix = std::env::var("TOPIC_PREFIX").unwrap_or_default();
    Ok((pool, Outbox::new(prefix, DEFAULT_MAX_BYTES).with_hint(hint)))
}

/// Prints what lies in the outbox for a key.
pub(crate) async fn show(pool: &PgPool, key: &str) -> anyhow::Result<()> {
    let rows: Vec<(i64, String, String, String, i32)> = sqlx::query_as(
        "select seq, type, topic, id::text, octet_length(payload) from messaging.outbox
         where aggregateid = $1 order by seq",
    )
    .bind(key)
    .fetch_all(pool)
    .await?;
    for (seq, r#type, topic, id, bytes) in rows {
        println!("seq {seq}  {topic}  key {key}  {type}  id {id}  {bytes} bytes");
    }
    Ok(())
}
