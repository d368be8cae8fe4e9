//! Sending: at least once, in order per order, whoever sends and whatever is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;
use waybill_consumer::Message;
use waybill_event::{OrderEvent, TraceContext};
use waybill_notification::notices::Locale;
use waybill_testkit::eventually;

use crate::fixture::{Fixture, of, order};
use crate::seen::{self, deliveries};

const SOON: Duration = Duration::from_millis(50);
const NEVER: Duration = Duration::from_secs(3600);

/// Each notification's first delivery, in order of delivery.
fn first_deliveries(order: Uuid) -> Vec<i64> {
    let mut known = BTreeSet::new();
    deliveries(order).iter().map(|delivery| delivery.seq).filter(|seq| known.insert(*seq)).collect()
}

#[tokio::test]
async fn what_commits_is_sent_at_once_in_the_trace_of_its_event() {
    let mut fixture = Fixture::new(Locale::En).await;
    let sender = fixture.sender(NEVER);
    fixture.hand_over_to(&sender, Locale::En);
    let placed = order("placed");
    let trace = Uuid::new_v4().simple().to_string();
    let parent = TraceContext::parse(&format!("00-{trace}-00f067aa0ba902b7-01"), None).expect("valid");
    fixture.orders(vec![Message::new(placed.clone()).with_trace(parent)]).await;
    fixture.all_sent().await;
    let sent = deliveries(placed.order_id);
    assert_eq!(sent.len(), 1);
    assert_eq!((sent[0].kind.as_str(), sent[0].body.contains("has been placed")), ("placed", true));
    let marked: (i32, Option<String>, Uuid) = sqlx::query_as(
        "select attempts, last_error, notification_id from notification where sent_at is not null",
    )
    .fetch_one(fixture.pool())
    .await
    .expect("marked");
    assert_eq!(marked, (1, None, sent[0].notification_id.parse().expect("id")));
    eventually(async || {
        let spans = seen::spans(&trace);
        let both =
            spans.iter().any(|s| s.starts_with("process")) && spans.iter().any(|s| s == "send notification");
        if both { Ok(()) } else { Err(spans) }
    })
    .await;
    sender.stop().await;
}

#[tokio::test]
async fn leftovers_of_a_crash_are_sent_by_the_poller_in_order() {
    let fixture = Fixture::new(Locale::En).await;
    let placed = order("placed");
    fixture.tell_all(&placed).await;
    assert_eq!(fixture.unsent().await, 5);
    let sender = fixture.sender(SOON);
    fixture.all_sent().await;
    let kinds: Vec<_> = deliveries(placed.order_id).into_iter().map(|delivery| delivery.kind).collect();
    assert_eq!(kinds, ["placed", "confirmed", "refunded", "payment_failed", "cancelled"]);
    sender.stop().await;
}

#[tokio::test]
async fn what_is_queued_is_still_sent_when_the_sender_stops() {
    let mut fixture = Fixture::new(Locale::En).await;
    let sender = fixture.sender(NEVER);
    fixture.hand_over_to(&sender, Locale::En);
    let orders: Vec<OrderEvent> = (0..150).map(|_| order("placed")).collect();
    fixture.orders(orders.iter().cloned().map(Message::new).collect()).await;
    sender.stop().await;
    assert_eq!(fixture.unsent().await, 0);
    assert!(orders.iter().all(|order| deliveries(order.order_id).len() == 1));
}

#[tokio::test]
async fn a_full_queue_loses_nothing() {
    let mut fixture = Fixture::new(Locale::En).await;
    let orders: Vec<OrderEvent> = (0..1_200).map(|_| order("placed")).collect();
    // Nobody listens to the fixture's queue, which holds 1,024.
    fixture.orders(orders.iter().cloned().map(Message::new).collect()).await;
    let sender = fixture.sender(SOON);
    fixture.hand_over_to(&sender, Locale::En);
    fixture.all_sent().await;
    sender.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_senders_send_each_notification_once_and_in_order() {
    let mut fixture = Fixture::new(Locale::En).await;
    let senders = [fixture.sender(SOON), fixture.sender(SOON)];
    fixture.hand_over_to(&senders[0], Locale::En);
    let orders: Vec<OrderEvent> = (0..30).map(|_| order("placed")).collect();
    for order in &orders {
        fixture.tell_all(order).await;
        // Both hear of every order.
        senders[1].queue.offer([order.order_id].into_iter());
    }
    fixture.all_sent().await;
    for order in &orders {
        let sent: Vec<i64> = deliveries(order.order_id).iter().map(|delivery| delivery.seq).collect();
        assert_eq!(sent.len(), 5);
        assert!(sent.is_sorted(), "{sent:?}");
    }
    for sender in senders {
        sender.stop().await;
    }
}

#[tokio::test]
async fn nothing_passes_a_row_that_another_sender_holds() {
    let fixture = Fixture::new(Locale::En).await;
    let (held, free) = (order("placed"), order("placed"));
    fixture.tell_all(&held).await;
    let mut other = fixture.pool().begin().await.expect("begins");
    sqlx::query("select 1 from notification where order_id = $1 order by seq limit 1 for update")
        .bind(held.order_id)
        .execute(&mut *other)
        .await
        .expect("locks");
    fixture.tell_all(&free).await;
    let sender = fixture.sender(SOON);
    // Two orders told later show that the poller went over the held one more than once.
    for _ in 0..2 {
        eventually(async || match fixture.unsent().await {
            5 => Ok(()),
            left => Err(left),
        })
        .await;
        fixture.tell_all(&order("placed")).await;
    }
    assert_eq!(deliveries(held.order_id), []);
    other.rollback().await.expect("rolls back");
    fixture.all_sent().await;
    let sent = first_deliveries(held.order_id);
    assert!(sent.len() == 5 && sent.is_sorted(), "{sent:?}");
    sender.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connections_repeat_some_lose_none_and_keep_the_order() {
    let fixture = Fixture::new(Locale::En).await;
    let orders: Vec<OrderEvent> = (0..40).map(|_| order("placed")).collect();
    for order in &orders {
        fixture.tell_all(order).await;
    }
    let senders = [fixture.sender(SOON), fixture.sender(SOON)];
    for _ in 0..5 {
        fixture.database.terminate_sessions().await;
        tokio::task::yield_now().await;
    }
    eventually(async || {
        let unsent: Result<i64, _> =
            sqlx::query_scalar("select count(*) from notification where sent_at is null")
                .fetch_one(fixture.pool())
                .await;
        match unsent {
            Ok(0) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await;
    for order in &orders {
        let sent = first_deliveries(order.order_id);
        assert!(sent.len() == 5 && sent.is_sorted(), "{sent:?}");
    }
    for sender in senders {
        sender.stop().await;
    }
}

#[tokio::test]
async fn a_channel_this_version_does_not_know_makes_its_order_wait_and_no_other() {
    let fixture = Fixture::new(Locale::En).await;
    let stuck = order("placed");
    fixture.tell_all(&stuck).await;
    sqlx::query("update notification set channel = 'pigeon' where kind = 'placed'")
        .execute(fixture.pool())
        .await
        .expect("edit");
    let free = order("confirmed");
    fixture.orders(vec![Message::new(of(&free, "confirmed"))]).await;
    let sender = fixture.sender(SOON);
    eventually(async || match deliveries(free.order_id).len() {
        1 => Ok(()),
        count => Err(count),
    })
    .await;
    let error = eventually(async || {
        let row: (i32, Option<String>) =
            sqlx::query_as("select attempts, last_error from notification where channel = 'pigeon'")
                .fetch_one(fixture.pool())
                .await
                .map_err(|e| e.to_string())?;
        match row {
            (1.., Some(error)) => Ok(error),
            row => Err(format!("{row:?}")),
        }
    })
    .await;
    assert_eq!(error, "channel \"pigeon\" is not known to this version");
    assert_eq!(deliveries(stuck.order_id), []);
    sqlx::query("update notification set channel = 'log'").execute(fixture.pool()).await.expect("edit");
    fixture.all_sent().await;
    let sent = first_deliveries(stuck.order_id);
    assert!(sent.len() == 5 && sent.is_sorted(), "{sent:?}");
    sender.stop().await;
}
