//! A state change and its event in one transaction: `cargo run -p waybill-outbox --example publish -- postgres://…`

mod common;
mod invoices;

use anyhow::{Context, ensure};
use invoices::InvoiceEvent;
use sqlx::PgPool;
use waybill_event::Event;
use waybill_outbox::{Outbox, inserted, updated};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (pool, outbox) = common::open(invoices::TABLE).await?;
    let issued = InvoiceEvent::issued(9_000);
    issue(&pool, &outbox, &issued).await?;
    let paid = issued.paid();
    ensure!(pay(&pool, &outbox, &paid).await?, "somebody else changed the invoice");
    println!("issued and paid");
    // Version 1 is gone, so nothing is held, and without a proof nothing can be appended.
    ensure!(!pay(&pool, &outbox, &paid).await?, "paid twice");
    println!("paid a second time: refused, no event");
    common::show(&pool, &issued.key()).await
}

/// The first event of an invoice.
async fn issue(pool: &PgPool, outbox: &Outbox, event: &InvoiceEvent) -> anyhow::Result<()> {
    let mut tx = pool.begin().await?;
    let insert = sqlx::query("insert into invoice (id, version, currency, total) values ($1, $2, $3, $4)")
        .bind(event.invoice_id)
        .bind(event.version)
        .bind(&event.currency)
        .bind(event.total);
    let locked = inserted(&mut tx, event.key(), insert).await?.context("nothing was inserted")?;
    outbox.append(&mut tx, &locked, event).await?;
    tx.commit().await?;
    outbox.ring();
    Ok(())
}

/// A later one: only who still finds the version before it may go on.
async fn pay(pool: &PgPool, outbox: &Outbox, event: &InvoiceEvent) -> anyhow::Result<bool> {
    let mut tx = pool.begin().await?;
    let update = sqlx::query("update invoice set paid = $3, version = $2 where id = $1 and version = $2 - 1")
        .bind(event.invoice_id)
        .bind(event.version)
        .bind(event.paid);
    let Some(locked) = updated(&mut tx, event.key(), update).await? else { return Ok(false) };
    outbox.append(&mut tx, &locked, event).await?;
    tx.commit().await?;
    outbox.ring();
    Ok(true)
}
