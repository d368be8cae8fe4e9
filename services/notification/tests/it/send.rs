//! Sending: at least once, in order per order, whoever sends and whatever is lost.

use std::collections::BTreeSet;
use std::time::Duration;

use uuid::Uuid;
use waybill_consumer::Message;
use waybill_event::{OrderEvent, TraceContext};
use waybill_notification::notices::Locale;
use waybill_task::{Settings, operate};
use waybill_testkit::eventually;

use crate::fixture::{Fixture, of, order, settings};
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
        let both = spans.iter().any(|s| s.starts_with("process"))
            && spans.iter().any(|s| s == "task notification.send");
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
async fn a_full_channel_loses_nothing() {
    let fixture = Fixture::new(Locale::En).await;
    let orders: Vec<OrderEvent> = (0..1_200).map(|_| order("placed")).collect();
    // Nobody listens to the fixture's channel, which holds 1,024.
    fixture.orders(orders.iter().cloned().map(Message::new).collect()).await;
    let sender = fixture.sender(SOON);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_sender_that_outlives_its_lease_repeats_one_and_marks_nothing() {
    let fixture = Fixture::new(Locale::En).await;
    let placed = order("placed");
    seen::hold(placed.order_id);
    fixture.tell_all(&placed).await;
    let zombie = fixture.sender(SOON);
    eventually(async || if seen::is_held() { Ok(()) } else { Err("not begun") }).await;
    // Its lease is over, as after a stop of the process.
    fixture.execute("update messaging.task set run_at = clock_timestamp() where status = 'running'").await;
    let other = fixture.sender(SOON);
    fixture.all_sent().await;
    let marked = "select seq, sent_at, attempts from notification order by seq";
    let rows = async || {
        sqlx::query_as::<_, (i64, chrono::DateTime<chrono::Utc>, i32)>(marked)
            .fetch_all(fixture.pool())
            .await
            .expect("rows")
    };
    let before = rows().await;
    assert_eq!(before.iter().map(|row| row.2).collect::<Vec<_>>(), [2, 1, 1, 1, 1]);
    seen::release();
    zombie.stop().await;
    other.stop().await;
    let sent = deliveries(placed.order_id);
    let kinds: Vec<_> = sent.iter().map(|delivery| delivery.kind.as_str()).collect();
    assert_eq!(kinds, ["placed", "confirmed", "refunded", "payment_failed", "cancelled", "placed"]);
    assert_eq!(sent[0].notification_id, sent[5].notification_id, "the receiver can tell that it is the same");
    assert_eq!(rows().await, before);
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
    fixture.execute("update notification set channel = 'pigeon' where kind = 'placed'").await;
    let free = order("confirmed");
    fixture.orders(vec![Message::new(of(&free, "confirmed"))]).await;
    let sender = fixture.sender(SOON);
    eventually(async || match deliveries(free.order_id).len() {
        1 => Ok(()),
        count => Err(count),
    })
    .await;
    let error = eventually(async || {
        let row: (i32, Option<String>) = sqlx::query_as(
            "select t.attempts, t.last_error from messaging.task t
             join notification n on n.notification_id = t.id and n.channel = 'pigeon'",
        )
        .fetch_one(fixture.pool())
        .await
        .map_err(|e| e.to_string())?;
        match row {
            (2.., Some(error)) => Ok(error),
            row => Err(format!("{row:?}")),
        }
    })
    .await;
    assert_eq!(error, "channel \"pigeon\" is not known to this version");
    assert_eq!(deliveries(stuck.order_id), []);
    fixture.execute("update notification set channel = 'log'").await;
    fixture.all_sent().await;
    let sent = first_deliveries(stuck.order_id);
    assert!(sent.len() == 5 && sent.is_sorted(), "{sent:?}");
    sender.stop().await;
}

#[tokio::test]
async fn what_is_given_up_lets_the_later_ones_pass_and_can_be_sent_again() {
    let fixture = Fixture::new(Locale::En).await;
    let told = order("placed");
    fixture.tell_all(&told).await;
    fixture.execute("update notification set channel = 'pigeon' where kind = 'placed'").await;
    let sender = fixture.sender_with(Settings { attempts: 3, ..settings(SOON) });
    eventually(async || match deliveries(told.order_id).len() {
        4 => Ok(()),
        count => Err(count),
    })
    .await;
    let failed: (Uuid, i32) =
        sqlx::query_as("select id, attempts from messaging.task where status = 'failed'")
            .fetch_one(fixture.pool())
            .await
            .expect("one");
    assert_eq!(failed.1, 3);
    fixture.execute("update notification set channel = 'log'").await;
    let verdict = operate::retry(fixture.pool(), failed.0.into()).await.expect("database");
    assert_eq!(verdict, operate::Verdict::Retried);
    fixture.all_sent().await;
    let last = deliveries(told.order_id).pop().expect("sent");
    assert_eq!((last.kind.as_str(), last.notification_id), ("placed", failed.0.to_string()));
    sender.stop().await;
}

#[tokio::test]
async fn what_an_operator_cancels_is_not_sent() {
    let fixture = Fixture::new(Locale::En).await;
    let told = order("placed");
    fixture.tell_all(&told).await;
    let first: Uuid = sqlx::query_scalar("select notification_id from notification order by seq limit 1")
        .fetch_one(fixture.pool())
        .await
        .expect("recorded");
    assert_eq!(
        operate::cancel(fixture.pool(), first.into()).await.expect("database"),
        operate::Verdict::Cancelled
    );
    let sender = fixture.sender(SOON);
    eventually(async || match fixture.unsent().await {
        1 => Ok(()),
        left => Err(left),
    })
    .await;
    let kinds: Vec<_> = deliveries(told.order_id).into_iter().map(|delivery| delivery.kind).collect();
    assert_eq!(kinds, ["confirmed", "refunded", "payment_failed", "cancelled"]);
    sender.stop().await;
}
