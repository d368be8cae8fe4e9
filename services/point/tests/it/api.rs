//! The HTTP API: who sees what, and pages.

use std::net::SocketAddr;

use axum::Router;
use reqwest::{Client, Response, StatusCode};
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use tokio_util::sync::DropGuard;
use uuid::Uuid;
use waybill_point::points;
use waybill_service::auth::{self, Verifier};
use waybill_service::http;
use waybill_testkit::jwt::Issuer;

use crate::histories::on_delivery;
use crate::ledger::Fixture;

struct Api {
    fixture: Fixture,
    issuer: Issuer,
    address: SocketAddr,
    _stop: DropGuard,
}

impl Api {
    async fn start() -> Self {
        let fixture = Fixture::new().await;
        let issuer = Issuer::new();
        let config = auth::Config {
            jwt_jwks_file: Some(issuer.jwks_file()),
            jwt_jwks_url: None,
            jwt_issuer: None,
            jwt_audience: None,
        };
        let verifier = Verifier::load(&config).await.expect("keys");
        let routes: Router = points::http::router(fixture.pool().clone(), verifier).into();
        let listener = http::bind("HTTP_LISTEN", ([127, 0, 0, 1], 0).into()).await.expect("port");
        let address = listener.local_addr().expect("address");
        let stop = CancellationToken::new();
        tokio::spawn(http::serve(listener, http::frame(routes), stop.clone()));
        Self { fixture, issuer, address, _stop: stop.drop_guard() }
    }

    async fn get(&self, path: &str, token: Option<String>) -> Response {
        let mut request = Client::new().get(format!("http://{}{path}", self.address));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.expect("answers")
    }
}

async fn problem(response: Response) -> (StatusCode, String) {
    let status = response.status();
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let body: Value = response.json().await.expect("json");
    (status, body["code"].as_str().expect("code").to_owned())
}

#[tokio::test]
async fn a_balance_is_shown_to_its_customer_and_to_staff_only() {
    let api = Api::start().await;
    let (customer, other) = (Uuid::now_v7(), Uuid::now_v7());
    api.fixture.deliver([on_delivery(customer, 12_300)]).await;
    let path = format!("/v1/points/{customer}");
    for path in [path.clone(), format!("{path}/entries")] {
        let status = async |token| problem(api.get(&path, token).await).await;
        assert_eq!(status(None).await, (StatusCode::UNAUTHORIZED, "unauthorized".into()));
        let expired = api.issuer.token_for(customer, "customer", -3600);
        assert_eq!(status(Some(expired)).await, (StatusCode::UNAUTHORIZED, "unauthorized".into()));
        let foreign = Issuer::new().token(customer, "customer");
        assert_eq!(status(Some(foreign)).await, (StatusCode::UNAUTHORIZED, "unauthorized".into()));
        let someone = api.issuer.token(other, "customer");
        assert_eq!(status(Some(someone)).await, (StatusCode::NOT_FOUND, "customer-not-found".into()));
    }
    for (subject, scope) in [(customer, "customer"), (other, "operator"), (other, "service")] {
        let response = api.get(&path, Some(api.issuer.token(subject, scope))).await;
        assert_eq!(response.status(), StatusCode::OK);
        let body: Value = response.json().await.expect("json");
        assert_eq!(body, serde_json::json!({"customerId": customer, "available": 123, "held": 0}));
    }
}

#[tokio::test]
async fn a_customer_without_any_order_has_nothing() {
    let api = Api::start().await;
    let customer = Uuid::now_v7();
    let token = || Some(api.issuer.token(customer, "customer"));
    let balance: Value =
        api.get(&format!("/v1/points/{customer}"), token()).await.json().await.expect("json");
    assert_eq!(balance, serde_json::json!({"customerId": customer, "available": 0, "held": 0}));
    let page: Value =
        api.get(&format!("/v1/points/{customer}/entries"), token()).await.json().await.expect("json");
    assert_eq!(page, serde_json::json!({"items": [], "nextCursor": null}));
    let unknown = api.get("/v1/points/not-a-uuid", token()).await;
    assert_eq!(problem(unknown).await, (StatusCode::NOT_FOUND, "customer-not-found".into()));
}

#[tokio::test]
async fn pages_show_every_entry_once_newest_first() {
    let api = Api::start().await;
    let customer = Uuid::now_v7();
    for number in 1..=5 {
        api.fixture.deliver([on_delivery(customer, number * 10_000)]).await;
    }
    let token = || Some(api.issuer.token(customer, "customer"));
    let mut path = format!("/v1/points/{customer}/entries?limit=2");
    let (mut amounts, mut pages) = (Vec::new(), 0);
    loop {
        let response = api.get(&path, token()).await;
        assert_eq!(response.status(), StatusCode::OK);
        let link = response.headers().get("link").map(|link| link.to_str().expect("text").to_owned());
        let page: Value = response.json().await.expect("json");
        amounts.extend(page["items"].as_array().expect("items").iter().map(|item| item["amount"].as_i64()));
        pages += 1;
        let Some(cursor) = page["nextCursor"].as_str() else {
            assert_eq!(link, None);
            break;
        };
        path = format!("/v1/points/{customer}/entries?limit=2&cursor={cursor}");
        assert_eq!(link.expect("link"), format!("<{path}>; rel=\"next\""));
    }
    assert_eq!((amounts, pages), (vec![Some(500), Some(400), Some(300), Some(200), Some(100)], 3));
}

#[tokio::test]
async fn a_wrong_page_is_refused() {
    let api = Api::start().await;
    let customer = Uuid::now_v7();
    for (query, code) in [
        ("cursor=nonsense", "invalid-cursor"),
        ("limit=0", "validation-failed"),
        ("limit=101", "validation-failed"),
        ("limit=many", "validation-failed"),
        ("page=2", "invalid-request"),
    ] {
        let token = api.issuer.token(customer, "customer");
        let response = api.get(&format!("/v1/points/{customer}/entries?{query}"), Some(token)).await;
        assert_eq!(problem(response).await, (StatusCode::BAD_REQUEST, code.into()), "{query}");
    }
}
