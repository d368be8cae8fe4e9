//! Routes behind the real frame, on a port of their own.

use std::net::SocketAddr;

use axum::Router;
use reqwest::{Client, Method, StatusCode};
use serde_json::Value;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;
use waybill_service::auth::{self, Verifier};
use waybill_service::http;
use waybill_testkit::jwt::Issuer;

pub(crate) struct Server {
    issuer: Issuer,
    address: SocketAddr,
    _stop: DropGuard,
}

/// An answer's status and body.
pub(crate) type Answer = (StatusCode, Value);

impl Server {
    pub(crate) async fn start(routes: impl FnOnce(Verifier) -> Router) -> Self {
        let issuer = Issuer::new();
        let config = auth::Config {
            jwt_jwks_file: Some(issuer.jwks_file()),
            jwt_jwks_url: None,
            jwt_issuer: None,
            jwt_audience: None,
        };
        let routes = routes(Verifier::load(&config).await.expect("keys"));
        let listener = http::bind("HTTP_LISTEN", ([127, 0, 0, 1], 0).into()).await.expect("port");
        let address = listener.local_addr().expect("address");
        let stop = CancellationToken::new();
        let routes = http::frame_with(routes, waybill_operations::BODIES);
        tokio::spawn(http::serve(listener, routes, stop.clone()));
        Self { issuer, address, _stop: stop.drop_guard() }
    }

    /// As staff with these roles.
    pub(crate) async fn call(
        &self,
        roles: &[&str],
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Answer {
        self.send(Some(self.issuer.operator(Uuid::now_v7(), roles)), method, path, body).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.call(&["view"], Method::GET, path, None).await
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.call(&["view", "act"], Method::POST, path, Some(body)).await
    }

    async fn send(&self, token: Option<String>, method: Method, path: &str, body: Option<&Value>) -> Answer {
        let mut request = Client::new().request(method, format!("http://{}{path}", self.address));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.expect("answers");
        let status = response.status();
        let json = response.headers()["content-type"].clone();
        assert_eq!(json, if status.is_success() { "application/json" } else { "application/problem+json" });
        (status, response.json().await.expect("json"))
    }

    /// Who may call a route: nobody without a token, no customer, no service or staff without the role.
    pub(crate) async fn needs(&self, role: &str, method: Method, path: &str, body: Option<&Value>) {
        let subject = Uuid::now_v7();
        let others: Vec<_> = ["view", "payload", "act"].into_iter().filter(|other| *other != role).collect();
        // Whoever has any role may look.
        let without = if role == "view" { &[][..] } else { &others[..] };
        let mut refused = vec![
            (None, StatusCode::UNAUTHORIZED),
            (Some(Issuer::new().operator(subject, &[role])), StatusCode::UNAUTHORIZED),
            (Some(self.issuer.sign(subject, "customer", Some(&[role]), 60)), StatusCode::FORBIDDEN),
            (Some(self.issuer.operator(subject, without)), StatusCode::FORBIDDEN),
            (Some(self.issuer.sign(subject, "service", Some(without), 60)), StatusCode::FORBIDDEN),
        ];
        if role != "view" {
            // Without the claim one may look.
            refused.push((Some(self.issuer.token(subject, "operator")), StatusCode::FORBIDDEN));
        }
        for (token, status) in refused {
            let answer = self.send(token, method.clone(), path, body).await;
            assert_eq!(answer.0, status, "{role} {path}: {answer:?}");
        }
        for scope in ["operator", "service"] {
            let token = self.issuer.sign(subject, scope, Some(&[role]), 60);
            let answer = self.send(Some(token), method.clone(), path, body).await;
            assert!(answer.0 != 401 && answer.0 != 403, "{role} {path} as {scope}: {answer:?}");
        }
    }
}

/// Status, code and the first field at fault.
pub(crate) fn fault(answer: &Answer) -> (u16, &str, &str) {
    let (status, body) = answer;
    let pointer = body["errors"][0]["pointer"].as_str();
    (status.as_u16(), body["code"].as_str().unwrap_or_default(), pointer.unwrap_or_default())
}
