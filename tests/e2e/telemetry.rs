//! What the services say of themselves.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use waybill_tests::System;
use waybill_tests::system::{SERVICES, root};

/// Names of the metrics that a service exports now.
async fn exported(system: &System, service: &str) -> BTreeSet<String> {
    let http = reqwest::Client::builder().no_proxy().build().expect("client");
    let text = http.get(system.metrics(service)).send().await.expect("answer").text().await.expect("text");
    let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let names = types.filter_map(|line| line.split(' ').next().map(str::to_owned));
    names.filter(|name| name != "target_info").collect()
}

/// Names on the page, each in backticks at the start of a table row.
fn documented() -> BTreeSet<String> {
    let page =
        std::fs::read_to_string(root().expect("root").join("deploy/prometheus/METRICS.md")).expect("page");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next().map(str::to_owned)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_is_on_the_page() {
    let system = System::start(&[]).await;
    let customer = system.customer();
    let order = customer.place("k", "TEA-1", 1, "ON_DELIVERY", None).await.expect("answer");
    assert!(customer.place("k", "TEA-1", 1, "ON_DELIVERY", None).await.expect("answer").replayed);
    customer.get(&format!("/v1/orders/{}", order.id().expect("id"))).await.expect("answer");
    system.topics.produce_raw("orders.v1", Some(b"k"), Some(b"damaged"), &[]).await;
    system.settled().await;
    let documented = documented();
    let mut seen = BTreeSet::new();
    for service in SERVICES {
        seen.extend(exported(&system, service).await);
    }
    let unknown: Vec<_> = seen.difference(&documented).collect();
    assert!(unknown.is_empty(), "not in deploy/prometheus/METRICS.md: {unknown:#?}");
    // Some appear only when something is wrong; most must be there.
    let missing: Vec<_> = documented.difference(&seen).collect();
    assert!(missing.len() * 3 < documented.len(), "on the page and never exported: {missing:#?}");
}

/// A collector that is down, and one that takes connections and never answers.
#[tokio::test(flavor = "multi_thread")]
async fn no_collector_can_hold_up_or_end_a_service() {
    let black_hole = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let silent = format!("http://{}", black_hole.local_addr().expect("bound"));
    for endpoint in ["http://127.0.0.1:1", &silent] {
        let mut system = System::prepare(&[("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)]).await;
        system.spawn("order", None);
        system.ready("order").await;
        let customer = system.customer();
        for n in 0..200 {
            let answer =
                customer.place(&format!("k{n}"), "TEA-1", 1, "ON_DELIVERY", None).await.expect("answer");
            assert_eq!(answer.status, 201, "{endpoint}: {answer:?}");
        }
        let pid = system.process("order").id().and_then(|id| Pid::from_raw(id as i32)).expect("runs");
        kill_process(pid, Signal::TERM).expect("signal");
        let asked = Instant::now();
        assert_eq!(system.process("order").ended().await, Some(0), "{endpoint}:\n{}", system.log("order"));
        assert!(asked.elapsed() < Duration::from_secs(20), "{endpoint}: the end took {:?}", asked.elapsed());
    }
}
