//! SIGKILL at each named point; afterwards the tables must show one event id, one earn and one notification for
//! each order, and no orphan.

use futures::future::join_all;
use waybill_testkit::eventually;
use waybill_tests::{Client, System};

/// Services batch, so that later passings of a point are not certain; the order service passes its own once an order.
const ORDERS: usize = 20;

/// Places orders as an honest client does: the same key again until an answer comes.
async fn place(customer: Client, n: usize) {
    let key = format!("key-{n}");
    eventually(async || match customer.place(&key, "CUP-1", 1, "ON_DELIVERY", None).await {
        Ok(answer) if answer.status == 201 => Ok(()),
        Ok(answer) if answer.status == 409 || answer.status >= 500 => Err(format!("{answer:?}")),
        Ok(answer) => panic!("refused: {answer:?}"),
        Err(error) => Err(error.to_string()),
    })
    .await;
}

/// Runs all services with one crash point armed, restarts the one that died, and looks at the tables.
async fn survives(service: &'static str, point: &str) {
    let mut system = System::prepare(&[]).await;
    for name in waybill_tests::system::SERVICES {
        system.spawn(name, (name == service).then_some(point));
    }
    for name in waybill_tests::system::SERVICES {
        if name != service {
            system.ready(name).await;
        }
    }
    if service == "order" {
        system.ready(service).await;
    }
    let customer = system.customer();
    let orders = join_all((0..ORDERS).map(|n| place(customer.clone(), n)));
    let restart = async {
        let code = system.process(service).ended().await;
        assert_eq!(code, None, "{service} must die of a signal at {point}:\n{}", system.log(service));
        assert!(system.log(service).contains("SIGKILL"), "{service} never came to {point}");
        system.spawn(service, None);
        system.ready(service).await;
    };
    futures::join!(orders, restart);
    system.settled().await;
    system.assert_invariants().await;
    let earned: (i64, i64) = sqlx::query_as(
        "select count(*), coalesce(sum(amount), 0)::bigint from point_entry where kind = 'EARN'",
    )
    .fetch_one(&system.points.pool)
    .await
    .expect("ledger");
    assert_eq!(earned, (ORDERS as i64, ORDERS as i64 * 120));
}

#[tokio::test(flavor = "multi_thread")]
async fn before_the_orders_commit() {
    survives("order", "order.before_commit@4").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_orders_commit() {
    survives("order", "order.after_commit@4").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_brokers_ack_before_the_mark() {
    survives("relay", "relay.after_ack").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_point_commit_before_the_offset_commit() {
    survives("point", "consumer.after_commit").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_the_middle_of_the_point_transaction() {
    survives("point", "point.in_transaction").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_notifications_commit_before_the_send() {
    survives("notification", "notification.before_send").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_send_before_the_mark() {
    survives("notification", "notification.after_send").await;
}
