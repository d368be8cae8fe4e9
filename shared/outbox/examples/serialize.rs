//! Events of a key that has no row: `cargo run -p waybill-outbox --example serialize -- postgres://…`
//!
//! Bookings are only ever inserted; a customer's balance is their sum. No row stands for the customer, so two
//! bookings at a time would both read the old sum. `serialize` makes them take turns.

mod common;

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use uuid::Uuid;
use waybill_event::{Codec, Event};
use waybill_outbox::{Outbox, serialize};

const TABLE: &str = "
    create table if not exists booking (
        id uuid not null,
        customer_id uuid not null,
        amount bigint not null,
        constraint booking_pkey primary key (id)
    );
    create index if not exists booking_customer_id_idx on booking (customer_id);
";

/// A customer's balance after a booking.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct BalanceEvent {
    customer_id: Uuid,
    version: i64,
    balance: i64,
}

/// A small schema may stand here; once it is published, it is frozen like a file.
const SCHEMA: &str = r#"{
  "type": "record", "name": "BalanceEvent", "namespace": "example.balances",
  "doc": "A customer's balance after a booking.",
  "fields": [
    { "name": "customer_id", "type": { "type": "string", "logicalType": "uuid" }, "doc": "Also the message key." },
    { "name": "version", "type": "long", "doc": "Number of bookings so far." },
    { "name": "balance", "type": "long", "doc": "In the currency's minor unit." }
  ]
}"#;

static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::embedded(BalanceEvent::TOPIC, &[SCHEMA]));

impl Event for BalanceEvent {
    const TOPIC: &'static str = "balances.v1";
    const AGGREGATE: &'static str = "balance";

    fn codec() -> &'static Codec {
        &CODEC
    }

    fn event_type(&self) -> String {
        "example.balance.changed".into()
    }

    fn key(&self) -> String {
        self.customer_id.to_string()
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let (pool, outbox) = common::open(TABLE).await?;
    let customer_id = Uuid::now_v7();
    let bookings = (0..8).map(|_| book(&pool, &outbox, customer_id, 100));
    for event in futures::future::try_join_all(bookings).await? {
        println!("booking {} leaves a balance of {}", event.version, event.balance);
    }
    common::show(&pool, &customer_id.to_string()).await
}

async fn book(
    pool: &PgPool,
    outbox: &Outbox,
    customer_id: Uuid,
    amount: i64,
) -> anyhow::Result<BalanceEvent> {
    let mut tx = pool.begin().await?;
    // First the key, then the reading: what is read earlier may be older than the last event.
    let locked = serialize(&mut tx, customer_id.to_string()).await?;
    sqlx::query("insert into booking (id, customer_id, amount) values ($1, $2, $3)")
        .bind(Uuid::now_v7())
        .bind(customer_id)
        .bind(amount)
        .execute(&mut *tx)
        .await?;
    let (version, balance) =
        sqlx::query_as("select count(*), sum(amount)::bigint from booking where customer_id = $1")
            .bind(customer_id)
            .fetch_one(&mut *tx)
            .await?;
    let event = BalanceEvent { customer_id, version, balance };
    outbox.append(&mut tx, &locked, &event).await?;
    tx.commit().await?;
    outbox.ring();
    Ok(event)
}
