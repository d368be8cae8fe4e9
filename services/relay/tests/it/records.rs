//! What a record looks like.

use serde_json::json;
use uuid::Uuid;

use crate::support::{World, becomes, id_of};
use waybill_service::telemetry;
use waybill_testkit::Database;
use waybill_testkit::otlp::Receiver;

#[tokio::test(flavor = "multi_thread")]
async fn a_record_has_the_rows_bytes_its_headers_and_the_partition_of_its_bucket() {
    let world = World::new(&["orders.v1"]).await;
    let (id, key, topic) = (Uuid::now_v7(), "0191-ä", world.topics.name("orders.v1"));
    let traceparent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    sqlx::query!(
        "select messaging.append($1, 'order', $2, 'waybill.order.placed', $3, $4, $5, 'a=1', $6)",
        id,
        key,
        topic,
        &[0xc3, 0x01, 0x00, 0xff][..],
        traceparent,
        json!({ "tenant": "x", "flag": "" }),
    )
    .fetch_one(world.pool())
    .await
    .expect("appends");
    sqlx::query!("update messaging.outbox set created_at = '2026-11-30 10:02:03.1+09'")
        .execute(world.pool())
        .await
        .expect("sets the time");
    let relay = world.relay(&[]).await;
    world.wait_for_published("orders.v1", 1).await;

    let record = world.topics.read("orders.v1").await.remove(0);
    assert_eq!(record.key.as_deref(), Some(key.as_bytes()));
    assert_eq!(record.value.as_deref(), Some(&[0xc3, 0x01, 0x00, 0xff][..]));
    assert_eq!(record.partition as u32, waybill_outbox::partition(key, 4));
    assert_eq!(record.partition, i32::from(waybill_outbox::bucket(key)) % 4);
    let id = id.to_string();
    let expected = [
        ("ce_id", id.as_str()),
        ("ce_type", "waybill.order.placed"),
        ("ce_source", "/order"),
        ("ce_specversion", "1.0"),
        ("ce_time", "2026-11-30T01:02:03.100000Z"),
        ("ce_subject", key),
        ("content-type", "application/avro"),
        ("traceparent", traceparent),
        ("tracestate", "a=1"),
        ("flag", ""),
        ("tenant", "x"),
    ];
    let expected: Vec<_> =
        expected.map(|(name, value)| (name.to_owned(), Some(value.as_bytes().to_vec()))).into();
    assert_eq!(record.headers, expected);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_without_trace_and_free_headers_has_the_seven_headers_only() {
    let world = World::new(&["orders.v1"]).await;
    world.append("orders.v1", "k", b"").await;
    let relay = world.relay(&[]).await;
    world.wait_for_published("orders.v1", 1).await;
    let record = world.topics.read("orders.v1").await.remove(0);
    assert_eq!(record.headers.len(), 7);
    assert_eq!(record.value.as_deref(), Some(&b""[..]), "an empty value is not null");
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_relay_publishes_two_databases_each_under_its_own_name() {
    let world = World::new(&["orders.v1", "points.v1"]).await;
    let points = Database::create(&[waybill_outbox::migrator()]).await;
    let relay =
        world.relay_of(&[("order", &world.database), ("point", &points)], &world.topics.bootstrap, &[]).await;
    world.append("orders.v1", "k", b"1").await;
    crate::support::append(&points.pool, &world.topics.name("points.v1"), "k", b"2").await;
    for (topic, source) in [("orders.v1", "/order"), ("points.v1", "/point")] {
        becomes(Some(source.to_owned()), async || {
            let records = world.topics.read(topic).await;
            records.first().and_then(|r| r.header("ce_source").map(str::to_owned))
        })
        .await;
    }
    let ids: Vec<Uuid> = world.topics.read("points.v1").await.iter().map(id_of).collect();
    let row =
        sqlx::query_scalar!("select id from messaging.outbox").fetch_all(&points.pool).await.expect("rows");
    assert_eq!(ids, row);
    relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_of_a_sampled_trace_has_a_span_below_the_writers_and_no_other_has_one() {
    let receiver = Receiver::start().await;
    let config = telemetry::Config {
        log_format: telemetry::LogFormat::Pretty,
        rust_log: "off".to_owned(),
        otel_exporter_otlp_endpoint: Some(receiver.endpoint.clone()),
        otel_traces_sampler_arg: 1.0,
    };
    let telemetry = telemetry::init("waybill-relay", &config).expect("starts once");
    let world = World::new(&["orders.v1"]).await;
    let trace = "4bf92f3577b34da6a3ce929d0e0e4736";
    for (parent, flags) in [("00f067aa0ba902b7", "01"), ("00f067aa0ba902b8", "00")] {
        world.append("orders.v1", parent, b"x").await;
        sqlx::query!(
            "update messaging.outbox set traceparent = $1 where aggregateid = $2",
            format!("00-{trace}-{parent}-{flags}"),
            parent,
        )
        .execute(world.pool())
        .await
        .expect("sets the trace");
    }
    world.append("orders.v1", "no trace", b"x").await;
    let relay = world.relay(&[]).await;
    relay.wait_for(|s| &s.published, 3).await;
    relay.stop().await;
    telemetry.shutdown().await;

    let topic = world.topics.name("orders.v1");
    let spans = receiver.spans();
    let sent: Vec<_> = spans.iter().filter(|span| span.name == format!("send {topic}")).collect();
    assert_eq!(sent.len(), 1, "{spans:?}");
    assert_eq!((sent[0].trace_id.as_str(), sent[0].parent_id.as_str()), (trace, "00f067aa0ba902b7"));
    assert_eq!(sent[0].kind, 4, "producer");
    let record =
        world.topics.read("orders.v1").await.into_iter().find(|r| r.key_text() == "00f067aa0ba902b7");
    let kept = record.expect("published");
    assert_eq!(kept.header("traceparent"), Some(format!("00-{trace}-00f067aa0ba902b7-01").as_str()));
}
