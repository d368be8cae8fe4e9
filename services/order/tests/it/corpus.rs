//! Nothing that a caller sends may end in a fault of ours.

use std::net::SocketAddr;
use std::path::Path;

use waybill_testkit::corpus::{Corpus, undescribed_routes};
use waybill_testkit::eventually;

use crate::app::{TestApp, send};

#[tokio::test]
async fn every_bad_request_is_refused_by_name() {
    let app = TestApp::start_with(&["--rate-limit", "0"]).await;
    eventually(async || {
        let ready = send(app.client.get(format!("{}/readyz", app.base))).await;
        if ready.status == 200 { Ok(()) } else { Err(ready.text) }
    })
    .await;
    let address: SocketAddr = app.base.trim_start_matches("http://").parse().expect("address");
    let token = app.issuer.token(app.customer, "customer");
    let sent = Corpus { address, token, bodies: Vec::new() }.run().await;
    assert!(sent > 500, "{sent}");
    assert_eq!(app.count("orders").await, 1, "only the good request, and its repetitions");
}

/// A route that is added by hand is in no description: the sources have none but those known here.
#[test]
fn no_route_bypasses_the_description() {
    let routes = undescribed_routes(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    assert_eq!(routes, ["/openapi.json"]);
}
