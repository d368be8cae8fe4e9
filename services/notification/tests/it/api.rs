//! The HTTP API: who sees what.

use std::net::SocketAddr;

use reqwest::{Client, Response, StatusCode};
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;
use waybill_consumer::Message;
use waybill_notification::notices::{self, Locale};
use waybill_service::auth::{self, Verifier};
use waybill_service::http;
use waybill_testkit::eventually;
use waybill_testkit::jwt::Issuer;

use crate::fixture::{Fixture, order, settings};

struct Api {
    fixture: Fixture,
    issuer: Issuer,
    address: SocketAddr,
    _stop: DropGuard,
}

impl Api {
    async fn start() -> Self {
        let fixture = Fixture::new(Locale::En).await;
        let issuer = Issuer::new();
        let config = auth::Config {
            jwt_jwks_file: Some(issuer.jwks_file()),
            jwt_jwks_url: None,
            jwt_issuer: None,
            jwt_audience: None,
        };
        let verifier = Verifier::load(&config).await.expect("keys");
        let routes = notices::http::router(fixture.pool().clone(), verifier).into();
        let listener = http::bind("HTTP_LISTEN", ([127, 0, 0, 1], 0).into()).await.expect("port");
        let address = listener.local_addr().expect("address");
        let stop = CancellationToken::new();
        tokio::spawn(http::serve(listener, http::frame(routes), stop.clone()));
        Self { fixture, issuer, address, _stop: stop.drop_guard() }
    }

    async fn get(&self, query: &str, token: Option<String>) -> Response {
        let mut request = Client::new().get(format!("http://{}/v1/notifications{query}", self.address));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        request.send().await.expect("answers")
    }

    async fn list(&self, order: Uuid, subject: Uuid, scope: &str) -> Value {
        let response = self.get(&format!("?orderId={order}"), Some(self.issuer.token(subject, scope))).await;
        assert_eq!(response.status(), StatusCode::OK);
        response.json().await.expect("json")
    }
}

async fn problem(response: Response) -> (StatusCode, String) {
    let status = response.status();
    let body: Value = response.json().await.expect("json");
    (status, body["code"].as_str().expect("code").to_owned())
}

#[tokio::test]
async fn notifications_are_shown_to_their_customer_and_to_staff_only() {
    let api = Api::start().await;
    let order = order("placed");
    api.fixture.orders(vec![Message::new(order.clone())]).await;
    api.fixture.execute("update messaging.task set last_error = 'no such server', attempts = 2").await;
    let own = api.list(order.order_id, order.customer_id, "customer").await;
    let item = &own["items"][0];
    assert_eq!(own["items"].as_array().map(Vec::len), Some(1));
    assert_eq!((item["kind"].as_str(), item["status"].as_str()), (Some("placed"), Some("retrying")));
    assert_eq!((item["attempts"].as_i64(), &item["lastError"]), (Some(2), &Value::Null));
    let staff = Uuid::now_v7();
    for scope in ["operator", "service"] {
        let seen = api.list(order.order_id, staff, scope).await;
        assert_eq!(seen["items"][0]["lastError"].as_str(), Some("no such server"));
    }
    let nothing = serde_json::json!({"items": []});
    assert_eq!(api.list(order.order_id, Uuid::now_v7(), "customer").await, nothing);
    assert_eq!(api.list(Uuid::now_v7(), order.customer_id, "customer").await, nothing);
}

#[tokio::test]
async fn the_state_of_each_notification_is_shown_also_when_its_sending_failed_or_was_cancelled() {
    let api = Api::start().await;
    let order = order("placed");
    api.fixture.tell_all(&order).await;
    api.fixture
        .execute(
            "update notification set channel = 'pigeon' where kind = 'placed';
             update messaging.task t set status = 'cancelled' from notification n
             where n.notification_id = t.id and n.kind = 'refunded'",
        )
        .await;
    let soon = std::time::Duration::from_millis(50);
    let sender = api.fixture.sender_with(waybill_task::Settings { attempts: 2, ..settings(soon) });
    let states = async || {
        let list = api.list(order.order_id, Uuid::now_v7(), "operator").await;
        let items = list["items"].as_array().cloned().unwrap_or_default();
        let of = |item: &Value, field: &str| item[field].as_str().unwrap_or_default().to_owned();
        items.iter().map(|item| (of(item, "kind"), of(item, "status"))).collect::<Vec<_>>()
    };
    let wanted = [
        ("placed", "failed"),
        ("confirmed", "sent"),
        ("refunded", "cancelled"),
        ("payment_failed", "sent"),
        ("cancelled", "sent"),
    ]
    .map(|(kind, status)| (kind.to_owned(), status.to_owned()));
    eventually(async || {
        let states = states().await;
        if states == wanted { Ok(()) } else { Err(states) }
    })
    .await;
    sender.stop().await;
    let list = api.list(order.order_id, Uuid::now_v7(), "operator").await;
    let (failed, sent) = (&list["items"][0], &list["items"][1]);
    assert_eq!(failed["lastError"], "channel \"pigeon\" is not known to this version");
    assert_eq!((&failed["attempts"], &failed["sentAt"]), (&2.into(), &Value::Null));
    assert_eq!((&sent["attempts"], sent["sentAt"].is_string()), (&1.into(), true));
    // What became of them is still told when their finished tasks are purged.
    api.fixture.execute("delete from messaging.task where status in ('done', 'cancelled')").await;
    assert_eq!(states().await, wanted);
}

#[tokio::test]
async fn a_call_without_a_good_token_or_order_is_refused() {
    let api = Api::start().await;
    let customer = Uuid::now_v7();
    let query = format!("?orderId={}", Uuid::now_v7());
    let unauthorized = (StatusCode::UNAUTHORIZED, "unauthorized".to_owned());
    assert_eq!(problem(api.get(&query, None).await).await, unauthorized);
    let expired = api.issuer.token_for(customer, "customer", -3600);
    assert_eq!(problem(api.get(&query, Some(expired)).await).await, unauthorized);
    let foreign = Issuer::new().token(customer, "operator");
    assert_eq!(problem(api.get(&query, Some(foreign)).await).await, unauthorized);
    for (query, code) in
        [("", "validation-failed"), ("?orderId=7", "validation-failed"), ("?order=x", "invalid-request")]
    {
        let answer = problem(api.get(query, Some(api.issuer.token(customer, "customer"))).await).await;
        assert_eq!(answer, (StatusCode::BAD_REQUEST, code.to_owned()), "{query}");
    }
}
