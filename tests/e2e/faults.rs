//! What comes from outside is wrong: nothing is lost, and the answer says what is wrong.

use uuid::Uuid;
use waybill_testkit::{Broker, eventually};
use waybill_tests::System;

#[tokio::test(flavor = "multi_thread")]
async fn foreign_and_damaged_records_die_alone() {
    let system = System::start(&[]).await;
    let customer = system.customer();
    let key = Uuid::now_v7().to_string();
    let first = customer.place("before", "TEA-1", 1, "ON_DELIVERY", None).await.expect("answer");
    system.settled().await;
    let good = system.topics.read("orders.v1").await[0].value.clone().expect("value");
    let damaged: Vec<(&str, Option<Vec<u8>>)> = vec![
        ("not Avro", Some(b"{\"json\": true}".to_vec())),
        ("null", None),
        ("empty", Some(Vec::new())),
        ("cut short", Some(good[..good.len() - 3].to_vec())),
        ("trailing bytes", Some([&good[..], b"xx"].concat())),
    ];
    for (what, value) in &damaged {
        let headers: &[(&str, Option<&[u8]>)] = &[("what", Some(what.as_bytes())), ("what", None)];
        system.topics.produce_raw("orders.v1", Some(key.as_bytes()), value.as_deref(), headers).await;
    }
    let second = customer.place("after", "TEA-1", 1, "ON_DELIVERY", None).await.expect("answer");
    assert_eq!((first.status, second.status), (201, 201));
    for topic in ["orders.v1.point.dlt", "orders.v1.notification.dlt"] {
        let dead = eventually(async || {
            let dead = system.topics.read(topic).await;
            if dead.len() == damaged.len() {
                Ok(dead)
            } else {
                Err(format!("{} of {}", dead.len(), damaged.len()))
            }
        })
        .await;
        for ((what, value), record) in damaged.iter().zip(dead) {
            assert_eq!(&record.value, value, "{what}: byte for byte");
            assert_eq!(record.key_text(), key);
            assert_eq!(record.headers[0], ("what".to_owned(), Some(what.as_bytes().to_vec())));
            assert_eq!(record.headers[1], ("what".to_owned(), None), "{what}: duplicates and null stay");
            let code = record.header("waybill-error-code").unwrap_or_default();
            assert!(!code.is_empty(), "{what}: no error code");
            assert!(record.header("waybill-origin-topic").unwrap_or_default().ends_with("orders.v1"));
        }
    }
    system.settled().await;
    system.assert_invariants().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_bodies_are_refused_by_field_and_leave_nothing() {
    let system = System::prepare(&[]).await;
    let mut system = system;
    system.spawn("order", None);
    system.ready("order").await;
    let customer = system.customer();
    let token = system.issuer.token(customer.customer, "customer");
    let http = reqwest::Client::builder().no_proxy().build().expect("client");
    let url = format!("{}/v1/orders", system.http("order"));
    let post = |body: &str| {
        http.post(&url)
            .bearer_auth(&token)
            .header("idempotency-key", Uuid::new_v4().to_string())
            .header("content-type", "application/json")
            .body(body.to_owned())
    };
    for (body, status, names) in [
        ("{", 400, "JSON"),
        (r#"{"items":[],"currency":"KRW","paymentMethod":"CARD"}"#, 400, "/items"),
        (
            r#"{"items":[{"sku":"TEA-1","quantity":0}],"currency":"KRW","paymentMethod":"CARD"}"#,
            400,
            "/items/0/quantity",
        ),
        (
            r#"{"items":[{"sku":"TEA-1","quantity":1}],"currency":"KRW","paymentMethod":"CASH"}"#,
            400,
            "/paymentMethod",
        ),
        (
            r#"{"items":[{"sku":"TEA-1","quantity":1}],"currency":"KRW","paymentMethod":"CARD","coupon":1}"#,
            400,
            "coupon",
        ),
        (
            r#"{"items":[{"sku":"TEA-1","quantity":1}],"currency":"KRW","paymentMethod":"CARD","expectedAmount":1}"#,
            422,
            "amount-mismatch",
        ),
    ] {
        let answer = post(body).send().await.expect("answer");
        assert_eq!(answer.headers()["content-type"], "application/problem+json", "{body}");
        let (got, text) = (answer.status().as_u16(), answer.text().await.expect("text"));
        assert!(got == status && text.contains(names), "{body}: {got} {text}");
    }
    let rows: (i64, i64) =
        sqlx::query_as("select (select count(*) from orders), (select count(*) from messaging.outbox)")
            .fetch_one(&system.orders.pool)
            .await
            .expect("counts");
    assert_eq!(rows, (0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_goes_away_loses_nothing() {
    let system = System::start(&[]).await;
    let customer = system.customer();
    for n in 0..30 {
        if n % 10 == 5 {
            system.orders.terminate_sessions().await;
            system.points.terminate_sessions().await;
            system.notifications.terminate_sessions().await;
            system.console.terminate_sessions().await;
            // Damaged in between: it must reach the console all the same.
            system.topics.produce_raw("orders.v1", Some(b"k"), Some(b"damaged"), &[]).await;
        }
        let key = format!("key-{n}");
        eventually(async || match customer.place(&key, "TEA-1", 1, "ON_DELIVERY", None).await {
            Ok(answer) if answer.status == 201 => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
    // Three damaged records, dead in two groups.
    let operator = system.operator(&["view"]);
    eventually(async || {
        // The first answer after the loss may be that the same request should be sent again.
        let stats = operator.ask("dlt stats").await.unwrap_or_default();
        let topics = stats["topics"].as_array();
        let unsettled =
            topics.into_iter().flatten().filter_map(|topic| topic["unsettled"].as_u64()).sum::<u64>();
        if unsettled == 6 { Ok(()) } else { Err(stats) }
    })
    .await;
    system.settled().await;
    system.assert_invariants().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broker_that_goes_away_leaves_the_console_searchable() {
    let mut broker = Broker::start().await;
    let mut system = System::prepare_on(&broker.bootstrap(), &[]).await;
    system.spawn("console", None);
    system.ready("console").await;
    let operator = system.operator(&["view"]);
    let dead = async |expected: usize| {
        eventually(async || {
            let page = operator.ask("dlt list").await.expect("the console answers");
            let count = page["items"].as_array().map(Vec::len);
            if count == Some(expected) { Ok(()) } else { Err(page) }
        })
        .await;
    };
    system.topics.produce_raw("orders.v1.point.dlt", Some(b"k"), Some(b"before"), &[]).await;
    dead(1).await;
    broker.kill();
    let http = reqwest::Client::builder().no_proxy().build().expect("client");
    let url = format!("{}/readyz", system.http("console"));
    eventually(async || match http.get(&url).send().await {
        Ok(answer) if answer.status() == 503 => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert!(system.process("console").is_running(), "{}", system.log("console"));
    dead(1).await;
    broker.resume().await;
    system.ready("console").await;
    system.topics.produce_raw("orders.v1.point.dlt", Some(b"k"), Some(b"after"), &[]).await;
    dead(2).await;
}
