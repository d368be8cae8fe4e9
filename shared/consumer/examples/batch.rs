//! Takes a whole batch in one statement, and judges each message by itself: what it refuses goes to the dead letters,
//! and costs the others nothing. Needs `DATABASE_URL` and `KAFKA_BOOTSTRAP`; ends with Ctrl-C.

use std::env::var;

use anyhow::anyhow;
use sqlx::{PgConnection, PgPool};
use tokio_util::sync::CancellationToken;
use waybill_consumer::{BatchHandler, Consumer, Failure, Message, Outcome, Settings, Subscription};
use waybill_event::OrderEvent;

struct Revenue;

impl BatchHandler for Revenue {
    type Event = OrderEvent;

    async fn handle(
        &self,
        tx: &mut PgConnection,
        messages: &[Message<OrderEvent>],
    ) -> Result<Vec<Outcome>, Failure> {
        // Judge first: a message that is not done must have left nothing in the transaction.
        let outcomes: Vec<_> = messages.iter().map(judge).collect();
        let accepted = messages.iter().zip(&outcomes).filter(|(_, outcome)| matches!(outcome, Outcome::Done));
        let (orders, paid): (Vec<_>, Vec<_>) =
            accepted.map(|(message, _)| (message.event.order_id, message.event.paid)).unzip();
        // The newest state of an order wins; of two in one statement, the later one.
        sqlx::query(
            "insert into revenue (order_id, paid)
             select distinct on (id) id, paid
             from unnest($1::uuid[], $2::bigint[]) with ordinality as given(id, paid, position)
             order by id, position desc
             on conflict (order_id) do update set paid = excluded.paid",
        )
        .bind(orders)
        .bind(paid)
        .execute(tx)
        .await?;
        Ok(outcomes)
    }
}

fn judge(message: &Message<OrderEvent>) -> Outcome {
    match message.event.currency.as_str() {
        "KRW" => Outcome::Done,
        other => Outcome::Permanent(anyhow!("no rate for {other}")),
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let pool = PgPool::connect(&var("DATABASE_URL")?).await?;
    waybill_consumer::migrator().run(&pool).await?;
    let table = "create table if not exists revenue (order_id uuid primary key, paid bigint not null)";
    sqlx::raw_sql(table).execute(&pool).await?;

    let client = vec![("bootstrap.servers".to_owned(), var("KAFKA_BOOTSTRAP")?)];
    let settings = Settings::new(client, var("TOPIC_PREFIX").unwrap_or_default());
    let consumer = Consumer::builder(pool, settings)
        .subscribe(Subscription::new("orders.v1", "revenue").batch_handler(Revenue))
        .build()?;
    let stop = CancellationToken::new();
    let on_ctrl_c = stop.clone();
    tokio::spawn(async move { tokio::signal::ctrl_c().await.map(|()| on_ctrl_c.cancel()) });
    Ok(consumer.run(stop).await?)
}
