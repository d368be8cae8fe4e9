//! Nothing that a caller sends may end in a fault of ours.

use std::path::Path;

use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_notification::App;
use waybill_testkit::corpus::{Corpus, operators_bodies, undescribed_routes};
use waybill_testkit::jwt::Issuer;
use waybill_testkit::{Database, Topics};

use crate::kafka::config;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_bad_request_is_refused_by_name() {
    let database = Database::create(&waybill_notification::migrators()).await;
    let topics = Topics::create(&["orders.v1", "points.v1"], 1).await;
    let issuer = Issuer::new();
    let app = App::build(config(&database, &topics, &issuer)).await.expect("builds");
    let address = app.local_addr();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(app.run(shutdown.clone()));
    let token = issuer.operator(Uuid::now_v7(), &["view", "payload", "act"]);
    let bodies = operators_bodies("orders.v1", "notification");
    let sent = Corpus { address, token, bodies }.run().await;
    assert!(sent > 500, "{sent}");
    shutdown.cancel();
    running.await.expect("no panic").expect("ends well");
}

/// A route that is added by hand is in no description: the sources have none, and those of the operators' routes only
/// the description's own.
#[test]
fn no_route_bypasses_the_description() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(undescribed_routes(&here.join("src")), [""; 0]);
    assert_eq!(undescribed_routes(&here.join("../../shared/operations/src")), ["/openapi.json"]);
}
