//! Nothing goes wrong.

use waybill_event::decode;
use waybill_event::order::OrderEvent;
use waybill_event::point::PointEvent;
use waybill_testkit::eventually;
use waybill_testkit::otlp::{Receiver, Span};
use waybill_tests::System;

#[tokio::test(flavor = "multi_thread")]
async fn orders_travel_to_points_and_notifications() {
    let system = System::start(&[]).await;
    let customer = system.customer();
    let mut ids = Vec::new();
    for (n, method) in ["ON_DELIVERY", "CARD", "ON_DELIVERY"].into_iter().enumerate() {
        let answer = customer.place(&format!("key-{n}"), "CUP-1", 2, method, None).await.expect("answer");
        assert_eq!(answer.status, 201, "{answer:?}");
        ids.push(answer.id().expect("id"));
    }
    let again = customer.place("key-0", "CUP-1", 2, "ON_DELIVERY", None).await.expect("answer");
    assert!(again.replayed && again.id().expect("id") == ids[0], "{again:?}");
    system.settled().await;
    system.assert_invariants().await;
    for service in waybill_tests::system::SERVICES {
        let log = system.log(service);
        assert!(
            log.lines().any(|line| line.contains("\"INFO\"")),
            "{service} does not say that it is up:\n{log}"
        );
        for secret in ["postgres://", &system.issuer.token(customer.customer, "customer")[..40], "CUP-1"] {
            assert!(!log.contains(secret), "{service} logs {secret}");
        }
    }

    let records = system.topics.read("orders.v1").await;
    assert_eq!(records.len(), 3);
    for record in &records {
        let event: OrderEvent = decode(record.value.as_deref().expect("value")).expect("decodes");
        assert_eq!(record.key_text(), event.order_id.to_string());
        assert_eq!(event.total, 24_000);
        let row: (String, String) =
            sqlx::query_as("select id::text, traceparent from messaging.outbox where aggregateid = $1")
                .bind(record.key_text())
                .fetch_one(&system.orders.pool)
                .await
                .expect("outbox row");
        assert_eq!((record.header("ce_id"), record.header("traceparent")), (Some(&*row.0), Some(&*row.1)));
    }
    let earned = system.topics.read("points.v1").await;
    let deltas: Vec<i64> = earned
        .iter()
        .map(|r| decode::<PointEvent>(r.value.as_deref().expect("value")).expect("decodes").delta)
        .collect();
    assert_eq!(deltas, [240, 240], "1 % of what is paid on delivery, nothing before a card is charged");
}

/// HTTP request → outbox → relay → Kafka → both consumers, as a collector sees it.
#[tokio::test(flavor = "multi_thread")]
async fn one_trace_reaches_from_the_request_to_both_consumers() {
    let collector = Receiver::start().await;
    let system = System::start(&[("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.endpoint)]).await;
    let trace_id = "0af7651916cd43dd8448eb211c80319c";
    let traceparent = format!("00-{trace_id}-b7ad6b7169203331-01");
    let answer =
        system.customer().place("k", "TEA-1", 1, "ON_DELIVERY", Some(&traceparent)).await.expect("answer");
    assert_eq!(answer.status, 201, "{answer:?}");
    system.settled().await;

    let wanted = [
        ("order", "POST /v1/orders"),
        ("relay", "send orders.v1"),
        ("point", "process orders.v1"),
        ("notification", "process orders.v1"),
        ("notification", "task notification.send"),
        ("relay", "send points.v1"),
        ("notification", "process points.v1"),
    ];
    let prefix = system.topics.prefix.clone();
    let spans = eventually(async || {
        let spans: Vec<Span> = collector.spans().into_iter().filter(|s| s.trace_id == trace_id).collect();
        let has = |service: &str, name: &str| {
            spans.iter().any(|s| s.service.ends_with(service) && s.name.replace(&prefix, "") == name)
        };
        let missing: Vec<_> = wanted.iter().filter(|(service, name)| !has(service, name)).collect();
        if missing.is_empty() { Ok(spans) } else { Err(format!("missing {missing:?} in {spans:?}")) }
    })
    .await;
    let span = |service: &str, name: &str| {
        spans
            .iter()
            .find(|s| s.service.ends_with(service) && s.name.replace(&prefix, "") == name)
            .expect("seen")
    };
    assert_eq!(span("order", "POST /v1/orders").parent_id, "b7ad6b7169203331");
    let ids: Vec<&str> = spans.iter().map(|s| s.span_id.as_str()).collect();
    for (service, name) in &wanted[1..] {
        let parent = &span(service, name).parent_id;
        assert!(
            ids.contains(&parent.as_str()),
            "{service} {name} hangs below a span that the collector has seen"
        );
    }
}
