//! Delivers messages to a handler without Kafka, by the runtime's own transaction code. Needs DATABASE_URL.
use uuid::Uuid;
use waybill_consumer::{Failure, Handler, Message, Tx, harness::Harness};
use waybill_event::PointEvent;

struct Sum;

impl Handler for Sum {
    type Event = PointEvent;
    async fn handle(&self, tx: &mut Tx<'_>, message: &Message<PointEvent>) -> Result<(), Failure> {
        let PointEvent { customer_id, delta, .. } = message.event;
        if delta == 0 {
            return Err(Failure::permanent(anyhow::anyhow!("an entry moves something")));
        }
        let insert = sqlx::query("insert into moved values ($1, $2)").bind(customer_id).bind(delta);
        insert.execute(&mut **tx).await?;
        Ok(())
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let pool = sqlx::PgPool::connect(&std::env::var("DATABASE_URL")?).await?;
    waybill_consumer::migrator().run(&pool).await?;
    sqlx::raw_sql("create table if not exists moved (customer uuid, delta bigint)").execute(&pool).await?;
    let (harness, customer) = (Harness::new(pool.clone(), "test"), Uuid::now_v7());

    let (good, empty) = (message(customer, 5), message(customer, 0));
    let again = message(customer, 5).with_id(good.id);
    let (done, dead) = (good.id, (empty.id, "an entry moves something".to_owned()));
    let delivered = harness.deliver(&Sum, vec![good, empty]).await?;
    assert_eq!((delivered.done, delivered.dead), (vec![done], vec![dead]));

    // The inbox knows it: no second effect.
    harness.deliver(&Sum, vec![again]).await?;
    let moved = "select sum(delta)::bigint from moved where customer = $1";
    let moved: i64 = sqlx::query_scalar(moved).bind(customer).fetch_one(&pool).await?;
    assert_eq!(moved, 5);
    println!("delivered twice, moved once");
    Ok(())
}

fn message(customer_id: Uuid, delta: i64) -> Message<PointEvent> {
    Message::new(PointEvent {
        entry_id: Uuid::now_v7(),
        order_id: Uuid::now_v7(),
        customer_id,
        attempt_id: None,
        kind: "earned".to_owned(),
        delta,
        available_after: delta,
        reason: None,
        occurred_at: chrono::Utc::now(),
    })
}
