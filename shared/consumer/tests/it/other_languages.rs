//! What other languages read: a Python program that has nothing but the records and the published schemas.

use std::path::{Path, PathBuf};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use tokio::process::Command;
use uuid::Uuid;
use waybill_event::{Attempt, Event, OrderEvent, OrderItem, headers};
use waybill_testkit::{Topics, process::binaries};

use crate::support::order;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

async fn run(command: &mut Command) -> String {
    let output = command.output().await.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{:?}: {errors}", command.as_std());
    String::from_utf8(output.stdout).unwrap()
}

/// A Python with the reader's two packages, made once below `target/`.
async fn python() -> PathBuf {
    let folder = binaries().parent().unwrap().join("python-venv-reader");
    let python = folder.join("bin/python");
    let requirements = root().join("tests/python/requirements.txt");
    let wanted = std::fs::read_to_string(&requirements).unwrap();
    // Written last: an installation that was interrupted is made again.
    let marker = folder.join("installed");
    if std::fs::read_to_string(&marker).is_ok_and(|installed| installed == wanted) {
        return python;
    }
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder)).await;
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
    run(Command::new(&python).args(install).arg(&requirements)).await;
    std::fs::write(marker, wanted).unwrap();
    python
}

/// Every optional field there, and every edge that a number or a text has.
fn rich() -> OrderEvent {
    let at = |micros| DateTime::from_timestamp_micros(micros).unwrap();
    OrderEvent {
        version: i64::MAX,
        customer_id: Uuid::max(),
        items: vec![
            OrderItem { sku: "TEA-1".to_owned(), quantity: i32::MAX, unit_price: 1 },
            OrderItem { sku: "차 \u{1f375}\0\"\\".to_owned(), quantity: 1, unit_price: 0 },
        ],
        attempt: Some(Attempt {
            id: Uuid::nil(),
            number: 1,
            points_to_use: 0,
            payable: i64::MAX,
            confirm_not_after: at(1),
        }),
        refunded: i64::MIN,
        earn_rate_bp: i32::MIN,
        expires_at: Some(at(-1)),
        reason: Some(String::new()),
        occurred_at: at(1_700_000_000_123_456),
        ..order()
    }
}

fn to_the_microsecond(mut order: OrderEvent) -> OrderEvent {
    let nanos = order.occurred_at.timestamp_subsec_nanos() % 1_000;
    order.occurred_at -= TimeDelta::nanoseconds(i64::from(nanos));
    order
}

#[tokio::test]
async fn python_reads_every_field_of_an_order_event() {
    let topics = Topics::create(&[OrderEvent::TOPIC], 1).await;
    let sent = [to_the_microsecond(order()), rich(), to_the_microsecond(order())];
    let mut ids = Vec::new();
    for order in &sent {
        ids.push(topics.produce(order).await.to_string());
    }
    let history = root().join("schemas/history/orders.v1");
    let printed = run(Command::new(python().await)
        .arg(root().join("tests/python/read_orders.py"))
        .args(["--bootstrap", &topics.bootstrap, "--topic", &topics.name(OrderEvent::TOPIC)])
        .arg("--schemas")
        .arg(history)
        .args(["--count", "3"]))
    .await;
    let lines: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), sent.len());
    for ((line, order), id) in lines.iter().zip(&sent).zip(&ids) {
        assert_eq!(line["event"], serde_json::to_value(order).unwrap());
        assert_eq!(line["key"], json!(order.order_id));
        assert_eq!(line["headers"][headers::CE_ID], json!(id));
        assert_eq!(line["headers"][headers::CE_TYPE], json!(order.event_type()));
        let time = line["headers"][headers::CE_TIME].as_str().unwrap();
        assert!(time.parse::<DateTime<Utc>>().is_ok(), "{time}");
    }
}
