use serde_json::json;
use waybill_order::migrators;
use waybill_testkit::Database;

use crate::app::{TestApp, order, order_with};
use crate::wire::proxy;

#[tokio::test]
async fn placing_is_two_round_trips_and_a_replay_is_one() {
    let database = Database::create(&migrators()).await;
    let mut url = reqwest::Url::parse(&database.url).unwrap();
    let server = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap_or(5432));
    let (address, counts) = proxy(server).await;
    url.set_port(Some(address.port())).unwrap();
    url.set_host(Some("127.0.0.1")).unwrap();
    url.set_query(Some("sslmode=disable"));
    // One connection, so that every statement is prepared once; the readiness check runs on it too.
    let app = TestApp::start_on(database, url.as_str(), &["--database-pool-size", "1"]).await;
    app.place("warm", &order()).await.placed();
    app.place("warm", &order()).await.placed();

    let during = async |key: &str, body| {
        // The readiness check adds one statement a second: the least of several tries is the request's own.
        let mut least = usize::MAX;
        for n in 0..5 {
            let (before, prepared) = counts.get();
            let key = if key == "new" { format!("new-{n}") } else { key.to_owned() };
            let answer = app.place(&key, &body).await;
            let (after, prepared_now) = counts.get();
            assert_eq!(prepared_now, prepared, "nothing is prepared again");
            assert!(answer.status == 201 || answer.status == 422, "{}", answer.text);
            least = least.min(after - before);
        }
        least
    };
    assert_eq!(during("new", order()).await, 2);
    assert_eq!(during("warm", order()).await, 1);
    assert_eq!(during("warm", order_with(json!({"paymentMethod": "CARD"}))).await, 1);
    assert_eq!(during("other", order_with(json!({"expectedAmount": 1}))).await, 1);
}
