//! One notification per event that customers are told of, and none for the others.

use waybill_consumer::Message;
use waybill_notification::notices::Locale;

use crate::fixture::{Fixture, of, order, points};

#[tokio::test]
async fn every_event_of_the_table_is_told_once_and_no_other() {
    let fixture = Fixture::new(Locale::En).await;
    let first = order("placed");
    let told = ["placed", "confirmed", "payment_failed", "expired", "cancelled", "refunded"];
    let untold = ["checkout_started", "cancel_requested", "orphan_payment_refunded", "teleported"];
    for kind in told.iter().chain(&untold) {
        let message = Message::new(of(&first, kind));
        let copy = Message::new(of(&first, kind)).with_id(message.id);
        fixture.orders(vec![message]).await;
        fixture.orders(vec![copy]).await;
    }
    for kind in ["earned", "held", "hold_rejected", "released", "spent", "restored", "earn_reversed"] {
        fixture.points(vec![Message::new(points(&first, kind, 125))]).await;
    }
    let rows: Vec<(String, String, String)> =
        sqlx::query_as("select kind, channel, body from notification order by seq")
            .fetch_all(fixture.pool())
            .await
            .expect("notifications");
    let kinds: Vec<_> = rows.iter().map(|(kind, ..)| kind.as_str()).collect();
    assert_eq!(
        kinds,
        ["placed", "confirmed", "payment_failed", "expired", "cancelled", "refunded", "earned"]
    );
    let id = first.order_id;
    assert_eq!(rows[0], ("placed".into(), "log".into(), format!("Your order {id} has been placed.")));
    assert_eq!(rows[6].2, format!("You have earned 125 points with your order {id}."));
    let tasks: Vec<(String, String)> = sqlx::query_as(
        "select t.key, n.kind from messaging.task t join notification n on n.notification_id = t.id order by t.seq",
    )
    .fetch_all(fixture.pool())
    .await
    .expect("tasks");
    assert!(tasks.iter().all(|(key, _)| *key == id.to_string()), "one order, one key: {tasks:?}");
    assert_eq!(tasks.iter().map(|(_, kind)| kind.as_str()).collect::<Vec<_>>(), kinds);
    let inbox: i64 =
        sqlx::query_scalar("select count(*) from messaging.processed_message where outcome = 'done'")
            .fetch_one(fixture.pool())
            .await
            .expect("inbox");
    assert_eq!(inbox, 17, "what is not told is acknowledged too");
}

#[tokio::test]
async fn an_event_is_told_once_even_when_the_inbox_has_forgotten_it() {
    let fixture = Fixture::new(Locale::Ko).await;
    let message = Message::new(order("placed"));
    let copy = Message::new(message.event.clone()).with_id(message.id);
    let order_id = message.event.order_id;
    fixture.orders(vec![message]).await;
    sqlx::query("delete from messaging.processed_message").execute(fixture.pool()).await.expect("purge");
    fixture.orders(vec![copy]).await;
    let bodies: Vec<String> = sqlx::query_scalar("select body from notification")
        .fetch_all(fixture.pool())
        .await
        .expect("notifications");
    assert_eq!(bodies.len(), 1);
    // The copy's task finds nothing to send.
    let sender = fixture.sender(std::time::Duration::from_millis(50));
    waybill_testkit::eventually(async || {
        let done: i64 = sqlx::query_scalar("select count(*) from messaging.task where status = 'done'")
            .fetch_one(fixture.pool())
            .await
            .map_err(|e| e.to_string())?;
        if done == 2 { Ok(()) } else { Err(format!("{done} done")) }
    })
    .await;
    assert_eq!(crate::seen::deliveries(order_id).len(), 1);
    sender.stop().await;
    assert!(bodies[0].ends_with("접수되었습니다."), "{bodies:?}");
}
