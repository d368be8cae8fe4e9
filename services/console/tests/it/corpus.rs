//! Nothing that a caller sends may end in a fault of ours.

use std::path::Path;

use serde_json::json;
use waybill_testkit::corpus::{Corpus, undescribed_routes};

use crate::fixture::{Dead, Fixture};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bad_request_is_refused_by_name() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    Dead::new("k").produce(&fixture.topics).await;
    console.letters(1).await;
    let line = json!({"topic": "orders.v1", "group": "point"});
    let mut key = line.clone();
    key["key"] = json!("k-1");
    let away = json!({"all": true, "reason": "a test"});
    let bodies = vec![
        ("POST /v1/dlt/plans", json!({"all": true})),
        ("POST /v1/dlt/archive", away.clone()),
        ("POST /v1/dlt/restore", away),
        ("POST /v1/keys/release", key),
        ("POST /v1/consumers/resume", line),
    ];
    let token = console.token.clone();
    let sent = Corpus { address: console.address, token, bodies }.run().await;
    assert!(sent > 1000, "{sent}");
    console.stop().await;
}

/// What only a service can judge is the caller's fault all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_service_refuses_is_told_as_the_callers_fault() {
    let fixture = Fixture::new().await;
    let console = fixture.console().await;
    for (path, pointer) in
        [("/v1/tasks?status=nonsense", "/status"), ("/v1/keys?service=point&after=nonsense", "/after")]
    {
        let (status, answer) = console.ask_as(&console.token, reqwest::Method::GET, path, None).await;
        assert_eq!(
            (status.as_u16(), &answer["code"]),
            (400, &json!("validation-failed")),
            "{path}: {answer}"
        );
        assert_eq!(answer["errors"][0]["pointer"], pointer, "{path}: {answer}");
    }
    let release = json!({"topic": "orders.v1", "group": "point", "key": "k-1", "key_encoding": "hex"});
    assert_eq!(console.refused("/v1/keys/release", &release).await, (400, "validation-failed".into()));
    console.stop().await;
}

/// A route that is added by hand is in no description: the sources have none but the description's own.
#[test]
fn no_route_bypasses_the_description() {
    let routes = undescribed_routes(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert_eq!(routes, ["/openapi.json"]);
}
