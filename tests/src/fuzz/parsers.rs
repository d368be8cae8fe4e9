//! What reads records: headers, frames, Avro.

use uuid::Uuid;
use waybill_event::headers::{self, Header, Headers};
use waybill_event::id::{MessageId, Origin};
use waybill_event::order::{OrderEvent, OrderItem};
use waybill_event::point::PointEvent;
use waybill_event::trace::TraceContext;
use waybill_event::{decode, encode, time};

use super::Target;

pub(super) fn corpus(target: Target) -> Vec<Vec<u8>> {
    if target == Target::Headers {
        return headers_corpus();
    }
    let values = vec![order(0), order(3), order(100), point(), vec![0xc3, 0x01], vec![0; 5], Vec::new()];
    let values = values.into_iter();
    if target == Target::Avro { values.filter(|v| v.len() > 10).collect() } else { values.collect() }
}

/// Whether the noise was taken for good.
pub(super) fn read(target: Target, noise: &[u8]) -> bool {
    match target {
        Target::Headers => read_headers(noise),
        Target::Frames => decode::<OrderEvent>(noise).is_ok() | decode::<PointEvent>(noise).is_ok(),
        _ => {
            // The frame stays good, so that the noise reaches what is behind it.
            let framed = |good: Vec<u8>| [&good[..10], noise.get(10..).unwrap_or_default()].concat();
            decode::<OrderEvent>(&framed(order(1))).is_ok() | decode::<PointEvent>(&framed(point())).is_ok()
        }
    }
}

/// One line a header, `name=value`; a name alone is a null.
fn read_headers(noise: &[u8]) -> bool {
    let lines = noise.split(|byte| *byte == b'\n');
    let headers: Headers = lines
        .map(|line| match line.iter().position(|byte| *byte == b'=') {
            Some(at) => Header::new(String::from_utf8_lossy(&line[..at]), &line[at + 1..]),
            None => Header::null(String::from_utf8_lossy(line)),
        })
        .collect();
    let origin = Origin { topic: "orders.v1", partition: 0, offset: 1, timestamp_ms: Some(2) };
    let id = MessageId::identify(&headers, origin);
    assert_eq!(id, MessageId::identify(&headers, origin), "an identity must stay");
    let trace = TraceContext::from_headers(&headers);
    if let Some(trace) = &trace {
        assert_eq!(trace.trace_id().len(), 32);
        drop(trace.to_context());
    }
    let at = headers.text(headers::CE_TIME).and_then(time::parse);
    if let Some(at) = at {
        drop(time::ce_time(at));
    }
    trace.is_some() || at.is_some()
}

fn headers_corpus() -> Vec<Vec<u8>> {
    [
        "ce_id=01890a5d-ac96-774b-bcce-b302099a8057\nce_source=/order\nce_time=2026-01-02T03:04:05.678901Z\ntraceparent=00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\ntracestate=a=b,c=d",
        "id=01890a5d-ac96-774b-bcce-b302099a8057\nTraceParent=cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00-x",
        "ce_id=order-17\nce_source=urn:x\nwaybill-origin-topic=orders.v1\nwaybill-origin-partition=3\nwaybill-origin-offset=99\nwaybill-origin-timestamp=1700000000000",
        "ce_id\nce_id=\n=\n",
    ]
    .map(|text| text.as_bytes().to_vec())
    .into()
}

fn order(items: usize) -> Vec<u8> {
    let now = chrono::DateTime::UNIX_EPOCH + chrono::Duration::days(20_000);
    let item = |n| OrderItem { sku: format!("SKU-{n}"), quantity: 2, unit_price: 4_500 };
    let event = OrderEvent {
        order_id: Uuid::from_u128(1),
        version: 1,
        r#type: "placed".into(),
        status: "CONFIRMED".into(),
        customer_id: Uuid::from_u128(2),
        currency: "KRW".into(),
        items: (0..items).map(item).collect(),
        total: 9_000,
        payment_method: "ON_DELIVERY".into(),
        attempt: None,
        points_used: 0,
        paid: 0,
        refunded: 0,
        earn_base: 9_000,
        earn_rate_bp: 100,
        expires_at: Some(now),
        reason: Some("주문".into()),
        occurred_at: now,
    };
    encode(&event).unwrap_or_default()
}

fn point() -> Vec<u8> {
    let event = PointEvent {
        entry_id: Uuid::from_u128(3),
        order_id: Uuid::from_u128(1),
        customer_id: Uuid::from_u128(2),
        attempt_id: None,
        kind: "earned".into(),
        delta: 90,
        available_after: 90,
        reason: None,
        occurred_at: chrono::DateTime::UNIX_EPOCH,
    };
    encode(&event).unwrap_or_default()
}
