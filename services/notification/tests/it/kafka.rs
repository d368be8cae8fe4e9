//! The whole service: from records on both topics to the log channel.

use clap::{Args, Command, FromArgMatches};
use tokio_util::sync::CancellationToken;
use waybill_notification::{App, BuildError, Config};
use waybill_service::migrations::Error::Pending;
use waybill_service::postgres;
use waybill_testkit::jwt::Issuer;
use waybill_testkit::{Database, Topics, eventually};

use crate::fixture::{of, order, points};
use crate::seen::{self, deliveries};

pub(crate) fn config(database: &Database, topics: &Topics, issuer: &Issuer) -> Config {
    let jwks = issuer.jwks_file();
    let arguments = [
        "serve",
        "--database-url",
        &database.url,
        "--kafka-bootstrap",
        &topics.bootstrap,
        "--topic-prefix",
        &topics.prefix,
        "--jwt-jwks-file",
        jwks.to_str().expect("text"),
        "--http-listen",
        "127.0.0.1:0",
        "--metrics-listen",
        "127.0.0.1:0",
        "--notification-locale",
        "en",
    ];
    let matches =
        Config::augment_args(Command::new("serve")).try_get_matches_from(arguments).expect("settings");
    Config::from_arg_matches(&matches).expect("settings")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_of_both_topics_reach_the_customer_and_the_offsets_move() {
    seen::watch();
    let database = Database::create(&waybill_notification::migrators()).await;
    let topics = Topics::create(&["orders.v1", "points.v1"], 2).await;
    let issuer = Issuer::new();
    let app = App::build(config(&database, &topics, &issuer)).await.expect("builds");
    let api = app.local_addr();
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(app.run(shutdown.clone()));

    let placed = order("placed");
    let id = topics.produce(&placed).await;
    topics.produce_as(&placed, id).await;
    topics.produce(&of(&placed, "checkout_started")).await;
    topics.produce(&of(&placed, "cancelled")).await;
    topics.produce(&points(&placed, "earned", 5)).await;

    let order_id = placed.order_id;
    let token = issuer.token(placed.customer_id, "customer");
    let client = reqwest::Client::new();
    let get = async |path: &str| {
        let request = client.get(format!("http://{api}{path}")).bearer_auth(&token);
        let response = request.send().await.map_err(|e| e.to_string())?;
        let status = response.status();
        let text = response.text().await.map_err(|e| e.to_string())?;
        if status.is_success() { Ok(text) } else { Err(format!("{status}: {text}")) }
    };
    eventually(async || get("/readyz").await).await;
    eventually(async || {
        let list = get(&format!("/v1/notifications?orderId={order_id}")).await?;
        if list.matches("\"status\":\"sent\"").count() == 3 { Ok(()) } else { Err(list) }
    })
    .await;
    let kinds: Vec<_> = deliveries(order_id).into_iter().map(|delivery| delivery.kind).collect();
    let of_orders: Vec<_> = kinds.iter().map(String::as_str).filter(|kind| *kind != "earned").collect();
    assert_eq!((kinds.len(), of_orders), (3, vec!["placed", "cancelled"]));

    // The operators' routes are on the same port.
    let operator = issuer.operator(uuid::Uuid::now_v7(), &["view"]);
    let ask = async |path: &str| {
        let request = client.get(format!("http://{api}{path}")).bearer_auth(&operator);
        let response = request.send().await.expect("answers");
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.headers()["cache-control"], "no-store");
        response.json::<serde_json::Value>().await.expect("json")
    };
    let shown = ask("/internal/consumer").await;
    let subscribed: Vec<_> =
        shown["subscriptions"].as_array().into_iter().flatten().map(|s| s["topic"].as_str()).collect();
    assert_eq!(subscribed, [Some("orders.v1"), Some("points.v1")]);
    let tasks = ask(&format!("/internal/tasks?key={order_id}")).await;
    assert_eq!(tasks["tasks"].as_array().map(Vec::len), Some(3));

    shutdown.cancel();
    running.await.expect("no panic").expect("ends well");
    for (topic, records) in [("orders.v1", 4), ("points.v1", 1)] {
        let mut committed = 0;
        for partition in 0..2 {
            committed += topics.committed("notification", topic, partition).await.unwrap_or(0);
        }
        assert_eq!(committed, records, "every record of {topic} is behind the offsets");
    }
}

#[tokio::test]
async fn a_database_without_tables_is_named_at_start() {
    let database = Database::create(&[]).await;
    let error = App::build(config(&database, &Topics::none(), &Issuer::new())).await.expect_err("no tables");
    assert!(matches!(error, BuildError::Database(postgres::Error::Migrations(Pending { .. }))), "{error}");
    let told = "(outbox) of messaging.outbox_migrations has not been applied: run `waybill-notification migrate` first";
    assert!(error.to_string().ends_with(told), "{error}");
}
