//! From the version without tasks: what it had recorded is sent, also what its last instances still record.

use std::time::Duration;

use uuid::Uuid;
use waybill_consumer::Message;
use waybill_event::OrderEvent;
use waybill_notification::notices::Locale;
use waybill_testkit::Database;

use crate::fixture::{Fixture, of, order};
use crate::seen::deliveries;

/// A database as the version before left it.
async fn before() -> Database {
    let database = Database::create(&[]).await;
    for migrator in waybill_notification::migrators() {
        let own = migrator.iter().any(|migration| migration.description == "notifications");
        if own { migrator.run_to(1, &database.pool).await } else { migrator.run(&database.pool).await }
            .expect("migrates");
    }
    database
}

/// The statement with which that version recorded.
async fn record_as_before(database: &Database, order: &OrderEvent, kind: &str) {
    sqlx::query(
        "insert into notification
             (notification_id, message_id, order_id, customer_id, kind, body, traceparent, tracestate)
         values ($1, $2, $3, $4, $5, 'old words', null, null)
         on conflict on constraint notification_message_id_key do nothing",
    )
    .bind(Uuid::now_v7())
    .bind(Uuid::now_v7())
    .bind(order.order_id)
    .bind(order.customer_id)
    .bind(kind)
    .execute(&database.pool)
    .await
    .expect("recorded");
}

#[tokio::test]
async fn what_was_recorded_before_the_upgrade_or_beside_it_is_sent_once_and_in_order() {
    let database = before().await;
    let (told, other) = (order("placed"), order("placed"));
    for kind in ["placed", "confirmed", "refunded"] {
        record_as_before(&database, &told, kind).await;
    }
    record_as_before(&database, &other, "placed").await;
    sqlx::raw_sql(
        "update notification set sent_at = clock_timestamp(), attempts = 1 where seq = 1;
         update notification set attempts = 3, last_error = 'no such server' where seq = 2",
    )
    .execute(&database.pool)
    .await
    .expect("one sent, one failing");
    for migrator in waybill_notification::migrators() {
        migrator.run(&database.pool).await.expect("migrates");
    }
    // An instance of the version before goes on, then one of this version takes its partition over.
    record_as_before(&database, &told, "payment_failed").await;
    let fixture = Fixture::on(database, Locale::En);
    fixture.orders(vec![Message::new(of(&told, "cancelled"))]).await;
    let tasks: i64 = sqlx::query_scalar("select count(*) from messaging.task")
        .fetch_one(fixture.pool())
        .await
        .expect("tasks");
    assert_eq!(tasks, 5, "one for each that is not sent");
    let error: String =
        sqlx::query_scalar("select last_error from messaging.task where last_error is not null")
            .fetch_one(fixture.pool())
            .await
            .expect("kept");
    assert_eq!(error, "no such server");

    let sender = fixture.sender(Duration::from_millis(50));
    fixture.all_sent().await;
    let sent = deliveries(told.order_id);
    let told: Vec<_> = sent.iter().map(|sent| (sent.kind.as_str(), sent.body == "old words")).collect();
    let wanted = [("confirmed", true), ("refunded", true), ("payment_failed", true), ("cancelled", false)];
    assert_eq!(told, wanted);
    assert_eq!(deliveries(other.order_id).len(), 1);
    sender.stop().await;
}
