//! Counts the events of each customer, each exactly once. Needs DATABASE_URL and KAFKA_BOOTSTRAP.
use sqlx::PgPool;
use waybill_consumer::{Consumer, Failure, Handler, Message, Settings, Subscription, Tx};
use waybill_event::OrderEvent;

struct Count;
impl Handler for Count {
    type Event = OrderEvent;
    async fn handle(&self, tx: &mut Tx<'_>, message: &Message<OrderEvent>) -> Result<(), Failure> {
        let add = "insert into seen values ($1, 1) on conflict (id) do update set n = seen.n + 1";
        sqlx::query(add).bind(message.event.customer_id).execute(&mut **tx).await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let env = std::env::var::<&str>;
    let pool = PgPool::connect(&env("DATABASE_URL")?).await?;
    waybill_consumer::migrator().run(&pool).await?;
    sqlx::raw_sql("create table if not exists seen (id uuid primary key, n int)").execute(&pool).await?;
    let client = vec![("bootstrap.servers".to_owned(), env("KAFKA_BOOTSTRAP")?)];
    let consumer = Consumer::builder(pool, Settings::new(client, env("TOPIC_PREFIX").unwrap_or_default()))
        .subscribe(Subscription::new("orders.v1", "first").handler(Count))
        .build()?;
    let stop = tokio_util::sync::CancellationToken::new();
    let on_ctrl_c = stop.clone();
    tokio::spawn(async move { tokio::signal::ctrl_c().await.map(|()| on_ctrl_c.cancel()) });
    Ok(consumer.run(stop).await?)
}
