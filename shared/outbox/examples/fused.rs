//! The same in one round trip: `cargo run -p waybill-outbox --example fused -- postgres://…`
//!
//! One statement is a transaction of its own, so it needs no `begin` and no `commit`.

mod common;
mod invoices;

use anyhow::{Context, ensure};
use invoices::InvoiceEvent;
use sqlx::PgPool;
use waybill_event::Event;
use waybill_outbox::Outbox;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (pool, outbox) = common::open(invoices::TABLE).await?;
    let issued = InvoiceEvent::issued(9_000);
    write(&pool, &outbox, &issued, ISSUE).await?.context("nothing was inserted")?;
    let paid = issued.paid();
    write(&pool, &outbox, &paid, PAY).await?.context("somebody else changed the invoice")?;
    println!("issued and paid");
    ensure!(write(&pool, &outbox, &paid, PAY).await?.is_none(), "paid twice");
    println!("paid a second time: refused, no event");
    common::show(&pool, &issued.key()).await
}

/// The append selects *from* the row's CTE. Beside it instead of from it, PostgreSQL may draw the outbox's `seq`
/// before the row is held, and two writers of one key invert their events.
const ISSUE: &str = "
    with i as (
        insert into invoice (id, version, currency, total, paid) values ($1, $2, $3, $4, $5)
        returning id
    )
    select messaging.append($6, $7, i.id::text, $8, $9, $10, $11, $12, $13, $14) from i
";

/// No row of the version before: no event either, and the statement gives nothing.
const PAY: &str = "
    with i as (
        update invoice set paid = $5, currency = $3, total = $4, version = $2
        where id = $1 and version = $2 - 1
        returning id
    )
    select messaging.append($6, $7, i.id::text, $8, $9, $10, $11, $12, $13, $14) from i
";

/// Gives the row's `seq`.
async fn write(
    pool: &PgPool,
    outbox: &Outbox,
    event: &InvoiceEvent,
    statement: &'static str,
) -> anyhow::Result<Option<i64>> {
    // Encodes and checks the size; the trace is the current span's.
    let draft = outbox.draft(event)?;
    let seq = sqlx::query_scalar(statement)
        .bind(event.invoice_id)
        .bind(event.version)
        .bind(&event.currency)
        .bind(event.total)
        .bind(event.paid)
        .bind(draft.id)
        .bind(draft.aggregatetype)
        .bind(draft.r#type)
        .bind(draft.topic)
        .bind(draft.payload)
        .bind(draft.traceparent)
        .bind(draft.tracestate)
        .bind(draft.headers)
        .bind(draft.max_bytes)
        .fetch_optional(pool)
        .await?;
    outbox.ring();
    Ok(seq)
}
