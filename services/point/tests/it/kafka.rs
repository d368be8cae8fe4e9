//! The whole service: from a record on `orders.v1` to the balance.

use clap::{Args, Command, FromArgMatches};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use waybill_point::{App, BuildError, Config};
use waybill_service::migrations::Error::Pending;
use waybill_service::postgres;
use waybill_testkit::jwt::Issuer;
use waybill_testkit::{Database, Topics, eventually};

use crate::histories::{Next, on_delivery};

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
    ];
    let matches =
        Config::augment_args(Command::new("serve")).try_get_matches_from(arguments).expect("settings");
    Config::from_arg_matches(&matches).expect("settings")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_event_becomes_points_and_the_offset_moves() {
    let database = Database::create(&waybill_point::migrators()).await;
    let topics = Topics::create(&["orders.v1", "orders.v1.point.dlt"], 2).await;
    let issuer = Issuer::new();
    let app = App::build(config(&database, &topics, &issuer)).await.expect("builds");
    let (api, metrics) = (app.local_addr(), app.metrics_addr());
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(app.run(shutdown.clone()));

    let customer = Uuid::now_v7();
    let order = on_delivery(customer, 50_000);
    let id = topics.produce(&order).await;
    topics.produce_as(&order, id).await;
    let mut poison = order.next("touched", &order.status);
    poison.earn_base = -1;
    let dead = topics.produce(&poison).await;
    topics.produce(&on_delivery(customer, 10_000)).await;

    let token = issuer.token(customer, "customer");
    let client = reqwest::Client::new();
    let get = async |address, path: &str| {
        let request = client.get(format!("http://{address}{path}")).bearer_auth(&token);
        let response = request.send().await.map_err(|e| e.to_string())?;
        let status = response.status();
        let text = response.text().await.map_err(|e| e.to_string())?;
        if status.is_success() { Ok(text) } else { Err(format!("{status}: {text}")) }
    };
    eventually(async || get(api, "/readyz").await).await;
    eventually(async || {
        let balance = get(api, &format!("/v1/points/{customer}")).await?;
        if balance.contains("\"available\":600,") { Ok(()) } else { Err(balance) }
    })
    .await;
    eventually(async || match topics.read("orders.v1.point.dlt").await.as_slice() {
        [record] if record.header("ce_id") == Some(&dead.to_string()) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert!(get(api, "/healthz").await.is_ok());
    assert!(get(metrics, "/metrics").await.is_ok());
    // An operator asks before a replay.
    let check = serde_json::json!({"topic": "orders.v1", "group": "point", "messages": [{"message_id": dead, "value": null}]});
    let checked = eventually(async || {
        let request = client.post(format!("http://{api}/internal/consumer/check")).json(&check);
        let request = request.bearer_auth(issuer.operator(Uuid::now_v7(), &["view"]));
        let answer: serde_json::Value = request.send().await.expect("answers").json().await.expect("json");
        if answer["messages"][0]["inbox"] == "dead" { Ok(answer) } else { Err(answer) }
    })
    .await;
    assert_eq!(checked["messages"][0]["decodes"], false, "no value is none of ours");

    shutdown.cancel();
    running.await.expect("no panic").expect("ends well");
    let mut committed = 0;
    for partition in 0..2 {
        committed += topics.committed("point", "orders.v1", partition).await.unwrap_or(0);
    }
    assert_eq!(committed, 4, "every record is behind the offsets");
    let entries: i64 = sqlx::query_scalar("select count(*) from point_entry")
        .fetch_one(&database.pool)
        .await
        .expect("entries");
    assert_eq!(entries, 2);
}

#[tokio::test]
async fn a_database_without_tables_is_named_at_start() {
    let database = Database::create(&[]).await;
    let error = App::build(config(&database, &Topics::none(), &Issuer::new())).await.expect_err("no tables");
    assert!(matches!(error, BuildError::Database(postgres::Error::Migrations(Pending { .. }))), "{error}");
    let told =
        "(outbox) of messaging.outbox_migrations has not been applied: run `waybill-point migrate` first";
    assert!(error.to_string().ends_with(told), "{error}");
}
