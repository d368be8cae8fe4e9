//! What the README tells other teams, done: the example programs, psql and Python write real rows, and every
//! message that is promised for a mistake is provoked.

#[path = "../../examples/invoices/mod.rs"]
mod invoices;

mod evolution;
mod foreign;
mod programs;
mod readme;

use std::path::{Path, PathBuf};
use std::process::Output;

use sqlx::PgPool;
use sqlx::postgres::PgRow;
use waybill_event::{Event, decode};

/// The root of the checkout, where the README's commands run.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("root")
}

/// What a command printed; with what it complained of when it failed.
fn printed(output: std::io::Result<Output>, what: &str) -> String {
    let output = output.unwrap_or_else(|error| panic!("{what} cannot be started: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{what} failed: {}\n{out}\n{err}", output.status);
    out
}

/// A row of the outbox with its event decoded.
#[derive(Debug)]
struct Written<E> {
    id: uuid::Uuid,
    key: String,
    aggregate: String,
    r#type: String,
    topic: String,
    event: E,
}

/// All rows, in `seq` order.
async fn outbox<E: Event>(pool: &PgPool) -> Vec<Written<E>> {
    use sqlx::Row;
    let rows: Vec<PgRow> = sqlx::query(
        "select id, aggregateid, aggregatetype, type, topic, payload, bucket = messaging.bucket(aggregateid) as placed
         from messaging.outbox where sent_at is null order by seq",
    )
    .fetch_all(pool)
    .await
    .expect("rows");
    rows.iter()
        .map(|row| {
            assert!(row.get::<bool, _>("placed"));
            Written {
                id: row.get("id"),
                key: row.get("aggregateid"),
                aggregate: row.get("aggregatetype"),
                r#type: row.get("type"),
                topic: row.get("topic"),
                event: decode(row.get("payload")).expect("decodes"),
            }
        })
        .collect()
}
