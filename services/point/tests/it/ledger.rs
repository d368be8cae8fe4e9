//! The ledger in the database, through the consumer's own transaction code.

use sqlx::PgPool;
use uuid::Uuid;
use waybill_consumer::Message;
use waybill_consumer::harness::Harness;
use waybill_event::order::payment_method;
use waybill_event::{OrderEvent, PointEvent, decode};
use waybill_outbox::{DEFAULT_MAX_BYTES, Outbox};
use waybill_point::points::{MovePoints, discrepancies};
use waybill_testkit::Database;

use crate::histories::{Next, on_delivery, placed};

pub(crate) struct Fixture {
    pub database: Database,
    pub harness: Harness,
    pub handler: MovePoints,
}

impl Fixture {
    pub(crate) async fn new() -> Self {
        let database = Database::create(&waybill_point::migrators()).await;
        let harness = Harness::new(database.pool.clone(), "point");
        let handler = MovePoints::new(Outbox::new("", DEFAULT_MAX_BYTES));
        Self { database, harness, handler }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.database.pool
    }

    /// Delivers and expects everything to be done.
    pub(crate) async fn deliver(&self, events: impl IntoIterator<Item = OrderEvent>) {
        self.deliver_messages(events.into_iter().map(Message::new).collect()).await;
    }

    async fn deliver_messages(&self, messages: Vec<Message<OrderEvent>>) {
        let count = messages.len();
        let delivered = self.harness.deliver_batch(&self.handler, messages).await.expect("database");
        assert_eq!(delivered.done.len(), count, "{delivered:?}");
    }

    async fn balance(&self, customer: Uuid) -> (i64, i64) {
        sqlx::query_as("select available, held from point_account where customer_id = $1")
            .bind(customer)
            .fetch_one(self.pool())
            .await
            .expect("account")
    }

    async fn kinds(&self, order: Uuid) -> Vec<(String, String, i64)> {
        sqlx::query_as("select kind, ref, amount from point_entry where order_id = $1 order by entry_id")
            .bind(order)
            .fetch_all(self.pool())
            .await
            .expect("entries")
    }

    /// What the outbox holds for an order, in order.
    async fn published(&self, order: Uuid) -> Vec<PointEvent> {
        let rows: Vec<(String, String, String, Vec<u8>)> = sqlx::query_as(
            "select topic, aggregateid, type, payload from messaging.outbox where aggregateid = $1::text order by seq",
        )
        .bind(order.to_string())
        .fetch_all(self.pool())
        .await
        .expect("outbox");
        let read = |(topic, key, kind, payload): (String, String, String, Vec<u8>)| {
            let event: PointEvent = decode(&payload).expect("decodes");
            assert_eq!((topic.as_str(), key), ("points.v1", order.to_string()));
            assert_eq!(kind, format!("waybill.points.{}", event.kind));
            event
        };
        rows.into_iter().map(read).collect()
    }

    pub(crate) async fn consistent(&self) {
        assert_eq!(discrepancies(self.pool()).await.expect("ledger"), []);
    }
}

#[tokio::test]
async fn an_order_on_delivery_earns_once_however_often_it_comes() {
    let fixture = Fixture::new().await;
    let customer = Uuid::now_v7();
    let order = on_delivery(customer, 12_345);
    let first = Message::new(order.clone());
    let copy = Message::new(order.clone()).with_id(first.id);
    let other_id = Message::new(order.clone());
    fixture.deliver_messages(vec![first]).await;
    fixture.deliver_messages(vec![copy, other_id]).await;
    assert_eq!(fixture.balance(customer).await, (123, 0));
    assert_eq!(fixture.kinds(order.order_id).await, [("EARN".to_owned(), "1".to_owned(), 123)]);
    let published = fixture.published(order.order_id).await;
    assert_eq!(published.len(), 1);
    let event = &published[0];
    assert_eq!((event.kind.as_str(), event.delta, event.available_after), ("earned", 123, 123));
    assert_eq!((event.customer_id, event.order_id), (customer, order.order_id));
    let entry: (Uuid, chrono::DateTime<chrono::Utc>) =
        sqlx::query_as("select entry_id, created_at from point_entry")
            .fetch_one(fixture.pool())
            .await
            .expect("entry");
    assert_eq!((event.entry_id, event.occurred_at), entry, "the event names its entry");
    fixture.consistent().await;
}

#[tokio::test]
async fn a_card_order_that_waits_for_payment_moves_nothing_and_locks_no_account() {
    let fixture = Fixture::new().await;
    fixture.deliver([placed(Uuid::now_v7(), 10_000, payment_method::CARD)]).await;
    for (table, rows) in
        [("point_account", 0_i64), ("point_entry", 0), ("messaging.outbox", 0), ("point_order", 1)]
    {
        let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!("select count(*) from {table}")))
            .fetch_one(fixture.pool())
            .await
            .expect("count");
        assert_eq!(count, rows, "{table}");
    }
}

#[tokio::test]
async fn held_points_are_spent_restored_and_what_was_earned_is_taken_back() {
    let fixture = Fixture::new().await;
    let customer = Uuid::now_v7();
    fixture.deliver([on_delivery(customer, 100_000)]).await;
    let placed = placed(customer, 10_000, payment_method::CARD);
    let checkout = placed.checkout(800);
    let confirmed = checkout.confirmed();
    let refunded = confirmed.refunded(5_000);
    let cancelled = refunded.cancelled();
    let order = placed.order_id;
    for (state, balance) in [
        (placed, (1_000, 0)),
        (checkout, (200, 800)),
        // 9,200 paid earn 92.
        (confirmed, (292, 0)),
        // Half of the total is refunded: 400 restored; 4,200 earn 42.
        (refunded, (642, 0)),
        (cancelled, (1_000, 0)),
    ] {
        fixture.deliver([state.clone()]).await;
        assert_eq!(fixture.balance(customer).await, balance, "after {}", state.r#type);
        fixture.consistent().await;
    }
    let entries: Vec<_> =
        fixture.kinds(order).await.into_iter().map(|(kind, _, amount)| (kind, amount)).collect();
    let expected = [
        ("HOLD", -800),
        ("SPEND", -800),
        ("EARN", 92),
        ("RESTORE", 400),
        ("EARN_REVERSAL", -50),
        ("RESTORE", 400),
        ("EARN_REVERSAL", -42),
    ];
    assert_eq!(entries, expected.map(|(kind, amount)| (kind.to_owned(), amount)));
    let published = fixture.published(order).await;
    let told: Vec<_> = published.iter().map(|event| (event.kind.as_str(), event.delta)).collect();
    assert_eq!(
        told,
        [
            ("held", -800),
            ("spent", 0),
            ("earned", 92),
            ("restored", 400),
            ("earn_reversed", -50),
            ("restored", 400),
            ("earn_reversed", -42)
        ]
    );
    assert!(published.iter().all(|event| event.attempt_id.is_some()));
}

#[tokio::test]
async fn a_hold_that_is_not_covered_is_rejected_for_good() {
    let fixture = Fixture::new().await;
    let customer = Uuid::now_v7();
    let checkout = placed(customer, 10_000, payment_method::CARD).checkout(500);
    let again = checkout.next("touched", &checkout.status);
    fixture.deliver([checkout.clone()]).await;
    // The points come too late for this attempt, and in time for the next.
    fixture.deliver([on_delivery(customer, 100_000), again.clone()]).await;
    let second = again.payment_failed().checkout(500);
    fixture.deliver([second.clone()]).await;
    let told: Vec<_> = fixture.published(checkout.order_id).await;
    let answers: Vec<_> = told
        .iter()
        .map(|e| (e.kind.as_str(), e.attempt_id, e.reason.as_deref(), e.available_after))
        .collect();
    assert_eq!(
        answers,
        [
            ("hold_rejected", checkout.attempt.map(|a| a.id), Some("insufficient-points"), 0),
            ("held", second.attempt.map(|a| a.id), None, 500)
        ]
    );
    fixture.consistent().await;
}

#[tokio::test]
async fn a_reversal_may_leave_less_than_nothing_and_then_nothing_is_held() {
    let fixture = Fixture::new().await;
    let customer = Uuid::now_v7();
    let earning = on_delivery(customer, 100_000);
    let spending = placed(customer, 10_000, payment_method::CARD).checkout(1_000);
    fixture.deliver([earning.clone(), spending.clone(), spending.confirmed()]).await;
    assert_eq!(fixture.balance(customer).await, (90, 0));
    fixture.deliver([earning.cancelled()]).await;
    assert_eq!(fixture.balance(customer).await, (-910, 0));
    let blocked = placed(customer, 10_000, payment_method::CARD).checkout(1);
    fixture.deliver([blocked.clone()]).await;
    assert_eq!(fixture.balance(customer).await, (-910, 0));
    let told = fixture.published(blocked.order_id).await;
    assert_eq!((told[0].kind.as_str(), told[0].available_after), ("hold_rejected", -910));
    fixture.consistent().await;
}

#[tokio::test]
async fn every_order_of_arrival_ends_the_same() {
    let fixture = Fixture::new().await;
    let mut ends = Vec::new();
    for permutation in permutations(4) {
        let customer = Uuid::now_v7();
        fixture.deliver([on_delivery(customer, 100_000)]).await;
        let checkout = placed(customer, 10_000, payment_method::CARD).checkout(800);
        let confirmed = checkout.confirmed();
        let refunded = confirmed.refunded(1_000);
        let history = [checkout, confirmed, refunded.clone(), refunded.next("touched", &refunded.status)];
        let arrival = permutation.into_iter().map(|place| history[place].clone());
        // Half of them in one batch, half one by one.
        if ends.len() % 2 == 0 {
            fixture.deliver(arrival).await;
        } else {
            for state in arrival {
                fixture.deliver([state]).await;
            }
        }
        let order: (i64, i64, i64, i64, i64) = sqlx::query_as(
            "select last_version, held, spent, restored, earned from point_order where order_id = $1",
        )
        .bind(history[0].order_id)
        .fetch_one(fixture.pool())
        .await
        .expect("order");
        ends.push((order, fixture.balance(customer).await));
    }
    assert_eq!(ends.len(), 24);
    assert_eq!(ends[0], ((5, 0, 800, 80, 82), (362, 0)));
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
    fixture.consistent().await;
}

#[tokio::test]
async fn a_state_that_can_never_be_applied_is_permanent_and_harms_no_other() {
    let fixture = Fixture::new().await;
    let customer = Uuid::now_v7();
    let good = on_delivery(customer, 10_000);
    let mut negative = on_delivery(customer, 10_000);
    negative.earn_base = -1;
    let mut too_much = on_delivery(customer, 10_000);
    too_much.earn_base = i64::MAX;
    let mut unknown = on_delivery(customer, 10_000);
    unknown.status = "TELEPORTED".to_owned();
    let mut stolen = good.next("touched", &good.status);
    stolen.customer_id = Uuid::now_v7();
    let mut rich = on_delivery(customer, i64::MAX);
    rich.earn_rate_bp = 10_000;
    let poison = [negative, too_much, unknown, stolen, rich].map(Message::new);
    let ids: Vec<_> = poison.iter().map(|message| message.id).collect();
    let mut messages = vec![Message::new(good.clone())];
    messages.extend(poison);
    messages.push(Message::new(on_delivery(customer, 20_000)));
    let delivered = fixture.harness.deliver_batch(&fixture.handler, messages).await.expect("database");
    assert_eq!(delivered.dead.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
    for ((_, text), part) in
        delivered.dead.iter().zip(["earn_base", "earn_base", "TELEPORTED", "another customer", "overflow"])
    {
        assert!(text.contains(part), "{text}");
    }
    assert_eq!((delivered.done.len(), delivered.blocked), (2, None));
    assert_eq!(fixture.balance(customer).await, (300, 0));
    fixture.consistent().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_over_the_same_customers_neither_lose_points_nor_wait_for_each_other() {
    let fixture = Fixture::new().await;
    let customers: Vec<Uuid> = (0..20).map(|_| Uuid::now_v7()).collect();
    let batch = |reverse: bool| {
        let mut orders: Vec<_> =
            customers.iter().map(|customer| Message::new(on_delivery(*customer, 10_000))).collect();
        if reverse {
            orders.reverse();
        }
        orders
    };
    // Partitions run side by side: each has its own harness.
    let partition = async |reverse: bool| {
        let harness = Harness::new(fixture.pool().clone(), "point");
        for _ in 0..10 {
            let delivered = harness.deliver_batch(&fixture.handler, batch(reverse)).await.expect("database");
            assert_eq!(delivered.done.len(), customers.len());
        }
    };
    tokio::join!(partition(false), partition(true), partition(false), partition(true));
    for customer in &customers {
        assert_eq!(fixture.balance(*customer).await, (4_000, 0));
    }
    let deadlocks: i64 =
        sqlx::query_scalar("select deadlocks from pg_stat_database where datname = current_database()")
            .fetch_one(fixture.pool())
            .await
            .expect("statistics");
    assert_eq!(deadlocks, 0);
    fixture.consistent().await;
}

#[tokio::test]
async fn a_manual_edit_is_found_as_a_discrepancy() {
    let fixture = Fixture::new().await;
    let customer = Uuid::now_v7();
    fixture.deliver([on_delivery(customer, 10_000)]).await;
    sqlx::query("update point_account set available = available + 1")
        .execute(fixture.pool())
        .await
        .expect("edit");
    let found = discrepancies(fixture.pool()).await.expect("ledger");
    assert_eq!(found.len(), 1);
    assert_eq!(
        (found[0].customer_id, found[0].account.available, found[0].entries.available),
        (customer, 101, 100)
    );
}

fn permutations(count: usize) -> Vec<Vec<usize>> {
    if count == 0 {
        return vec![Vec::new()];
    }
    let insert = |shorter: Vec<usize>| {
        (0..count).map(move |place| {
            let mut longer = shorter.clone();
            longer.insert(place, count - 1);
            longer
        })
    };
    permutations(count - 1).into_iter().flat_map(insert).collect()
}
