use reqwest::Method;
use serde_json::{Value, json};

use crate::app::{TestApp, order, order_with, send};

#[tokio::test]
async fn a_wrong_body_is_400_and_names_the_field() {
    let app = TestApp::start().await;
    let item = |item: Value| order_with(json!({"items": [item]})).to_string();
    let with = |members: Value| order_with(members).to_string();
    let tea = |quantity: Value| item(json!({"sku": "TEA-100", "quantity": quantity}));
    let many: Vec<Value> = (0..101).map(|n| json!({"sku": format!("S{n}"), "quantity": 1})).collect();
    let twice = [json!({"sku": "MUG-1", "quantity": 1}), json!({"sku": "MUG-1", "quantity": 2})];
    let without = |name: &str| {
        let mut body = order();
        body.as_object_mut().unwrap().remove(name);
        body.to_string()
    };
    for (body, code, named) in [
        (String::new(), "invalid-request", "not JSON"),
        ("{".into(), "invalid-request", "not JSON"),
        ("<order/>".into(), "invalid-request", "not JSON"),
        (format!("{} {}", order(), order()), "invalid-request", "one JSON value"),
        ("\u{feff}{}".into(), "invalid-request", "not JSON"),
        ("[".repeat(5_000), "validation-failed", "a JSON object"),
        ("null".into(), "validation-failed", "a JSON object"),
        ("[]".into(), "validation-failed", "a JSON object"),
        (r#"[[{"sku":"MUG-1","quantity":1}],"KRW","CARD"]"#.into(), "validation-failed", "a JSON object"),
        (item(json!(["MUG-1", 1])), "validation-failed", "/items/0"),
        ("{}".into(), "validation-failed", "items"),
        (without("items"), "validation-failed", "items"),
        (without("currency"), "validation-failed", "currency"),
        (without("paymentMethod"), "validation-failed", "paymentMethod"),
        (with(json!({"items": null})), "validation-failed", "/items"),
        (with(json!({"items": {}})), "validation-failed", "/items"),
        (with(json!({"items": []})), "validation-failed", "/items"),
        (with(json!({"items": many})), "validation-failed", "/items"),
        (with(json!({"items": twice})), "validation-failed", "/items/1/sku"),
        (item(json!(null)), "validation-failed", "/items/0"),
        (item(json!({"sku": "TEA-100"})), "validation-failed", "quantity"),
        (item(json!({"quantity": 1})), "validation-failed", "sku"),
        (item(json!({"sku": 5, "quantity": 1})), "validation-failed", "/items/0/sku"),
        (item(json!({"sku": "", "quantity": 1})), "validation-failed", "/items/0/sku"),
        (item(json!({"sku": "a b", "quantity": 1})), "validation-failed", "/items/0/sku"),
        (item(json!({"sku": "tea\u{0}", "quantity": 1})), "validation-failed", "/items/0/sku"),
        (item(json!({"sku": "차", "quantity": 1})), "validation-failed", "/items/0/sku"),
        (item(json!({"sku": "S".repeat(65), "quantity": 1})), "validation-failed", "/items/0/sku"),
        (item(json!({"sku": "MUG-1", "quantity": 1, "price": 1})), "validation-failed", "price"),
        (tea(json!("2")), "validation-failed", "/items/0/quantity"),
        (tea(json!(1.5)), "validation-failed", "/items/0/quantity"),
        (tea(json!(1e30)), "validation-failed", "must be an integer from 1 to 1000"),
        (tea(json!("x")), "validation-failed", "must be an integer from 1 to 1000"),
        (tea(json!(7)).replace('7', "1e400"), "validation-failed", "must be an integer from 1 to 1000"),
        (tea(json!(7)).replace('7', "1e400"), "validation-failed", "/items/0/quantity"),
        (tea(json!(0)), "validation-failed", "/items/0/quantity"),
        (tea(json!(-1)), "validation-failed", "/items/0/quantity"),
        (tea(json!(1001)), "validation-failed", "/items/0/quantity"),
        (tea(json!(4_294_967_297_i64)), "validation-failed", "/items/0/quantity"),
        (tea(json!(null)), "validation-failed", "/items/0/quantity"),
        (with(json!({"currency": "krw"})), "validation-failed", "/currency"),
        (with(json!({"currency": "WON!"})), "validation-failed", "/currency"),
        (with(json!({"currency": 410})), "validation-failed", "/currency"),
        (with(json!({"currency": "USD"})), "validation-failed", "/currency"),
        (with(json!({"currency": "XXX"})), "validation-failed", "/currency"),
        (with(json!({"paymentMethod": "CASH"})), "validation-failed", "/paymentMethod"),
        (with(json!({"paymentMethod": null})), "validation-failed", "/paymentMethod"),
        (with(json!({"expectedAmount": -1})), "validation-failed", "/expectedAmount"),
        (with(json!({"expectedAmount": "21000"})), "validation-failed", "/expectedAmount"),
        (with(json!({"expectedAmount": 9_007_199_254_740_992_i64})), "validation-failed", "/expectedAmount"),
        (with(json!({"expectedAmount": u64::MAX})), "validation-failed", "/expectedAmount"),
        (with(json!({"total": 1})), "validation-failed", "total"),
        (with(json!({"customerId": "me"})), "validation-failed", "customerId"),
        (order().to_string().replacen('{', "{\"currency\":\"KRW\",", 1), "validation-failed", "currency"),
    ] {
        let request = app.request(Method::POST, "/v1/orders").header("Idempotency-Key", "k");
        let answer = send(request.header("Content-Type", "application/json").body(body.clone())).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
        let problem = answer.problem(400, code);
        assert!(answer.text.contains(named), "{body} should name {named}: {problem}");
        if code == "validation-failed" {
            assert!(problem["errors"][0]["pointer"].is_string(), "{body}: {problem}");
        }
    }
    assert_eq!((app.count("orders").await, app.count("idempotency_key").await), (0, 0));
}

#[tokio::test]
async fn an_integer_is_judged_by_its_value_and_not_by_how_it_is_written() {
    let app = TestApp::start().await;
    let written =
        |quantity: &str| order().to_string().replace(r#""quantity":2"#, &format!(r#""quantity":{quantity}"#));
    let place = async |body: String| {
        let request = app.request(Method::POST, "/v1/orders").header("Idempotency-Key", "k");
        send(request.header("Content-Type", "application/json").body(body)).await
    };
    let first = place(written("2")).await.placed();
    for same in ["2.0", "2e0", "0.2E+1", "200e-2"] {
        let again = place(written(same)).await;
        assert!(again.is_replay(), "{same}: {}", again.text);
        assert_eq!(again.placed(), first, "{same}");
    }
    for query in ["limit=2.0", "limit=2e0"] {
        assert_eq!(app.get(&format!("/v1/orders?{query}")).await.status, 200, "{query}");
    }
}

#[tokio::test]
async fn every_fault_of_a_body_is_told_at_once() {
    let app = TestApp::start().await;
    let body = json!({"items": [{"sku": "!", "quantity": 0}], "currency": "x", "paymentMethod": "CARD", "expectedAmount": -1});
    let problem = app.place("k", &body).await.problem(400, "validation-failed");
    assert_eq!(problem["errors"].as_array().unwrap().len(), 4, "{problem}");
}

#[tokio::test]
async fn a_large_or_foreign_body_is_refused_unread() {
    let app = TestApp::start().await;
    let post = || app.request(Method::POST, "/v1/orders").header("Idempotency-Key", "k");
    let large = format!("{}{}", order(), " ".repeat(65_536));
    let json = || post().header("Content-Type", "application/json");
    send(json().body(large.clone())).await.problem(413, "payload-too-large");
    // Without a length, as chunks.
    let (half, rest) = large.split_at(40_000);
    let chunks = [half.to_owned(), rest.to_owned()].map(Ok::<_, std::io::Error>);
    let stream = reqwest::Body::wrap_stream(futures::stream::iter(chunks));
    send(json().body(stream)).await.problem(413, "payload-too-large");
    let fits = format!("{}{}", order(), " ".repeat(65_536 - order().to_string().len()));
    send(json().body(fits)).await.placed();
    for content_type in ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""] {
        let request = post().header("Content-Type", content_type).body(order().to_string());
        send(request).await.problem(415, "unsupported-media-type");
    }
    send(post().body(order().to_string())).await.problem(415, "unsupported-media-type");
    let declared = || json().body(order().to_string());
    send(post().header("Content-Type", "application/json; charset=euc-kr").body(order().to_string()))
        .await
        .problem(415, "unsupported-media-type");
    let compressed = send(declared().header("Content-Encoding", "gzip")).await;
    let problem = compressed.problem(415, "unsupported-content-encoding");
    assert!(problem["detail"].as_str().unwrap().contains("Content-Encoding"), "{problem}");
    assert_eq!(compressed.header("accept-encoding"), Some("identity"));
    send(declared().header("Content-Encoding", "identity")).await.placed();
    send(post().header("Content-Type", "Application/JSON; charset=utf-8").body(order().to_string()))
        .await
        .placed();
}
