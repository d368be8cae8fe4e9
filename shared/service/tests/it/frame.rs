//! What the frame does to every answer.

use axum::Router;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;
use waybill_service::http::{ApiError, BODY_LIMIT, Json, bind, frame, serve};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    text: String,
}

fn routes() -> Router {
    Router::new()
        .route("/echo", post(async |Json(body): Json<Body>| body.text))
        .route("/broken", get(async || ApiError::internal(std::io::Error::other("password=hunter2"))))
        .route("/panics", get(panics))
        .route("/pool", get(async || ApiError::from(sqlx::Error::PoolTimedOut)))
        .route("/lost", get(async || ApiError::from(sqlx::Error::PoolClosed)))
        .route(
            "/teapot",
            get(async || ApiError::new(StatusCode::IM_A_TEAPOT, "teapot", "short").pointer("/a/0", "stout")),
        )
}

async fn panics() -> &'static str {
    panic!("hunter2")
}

async fn start() -> (String, CancellationToken) {
    let listener = bind("HTTP_LISTEN", "127.0.0.1:0".parse().expect("address")).await.expect("binds");
    let base = format!("http://{}", listener.local_addr().expect("bound"));
    let shutdown = CancellationToken::new();
    let stop = shutdown.clone();
    tokio::spawn(async move { serve(listener, frame(routes()), stop).await.expect("serves") });
    (base, shutdown)
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().expect("client")
}

async fn problem(response: reqwest::Response) -> Value {
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let (status, id) = (response.status().as_u16(), response.headers()["x-request-id"].clone());
    let body: Value = response.json().await.expect("JSON");
    assert_eq!(body["status"], status, "the body repeats the status");
    assert_eq!(body["requestId"], id.to_str().expect("text"), "the body repeats the request id");
    assert_eq!(body["type"], format!("/problems/{}", body["code"].as_str().expect("code")));
    body
}

#[tokio::test]
async fn a_failure_of_ours_hides_its_cause() {
    let (base, shutdown) = start().await;
    for (path, status, code) in [
        ("/broken", 500, "internal-error"),
        ("/panics", 500, "internal-error"),
        ("/pool", 503, "overloaded"),
        ("/lost", 503, "database-unavailable"),
        ("/teapot", 418, "teapot"),
        ("/nothing", 404, "not-found"),
        ("/echo", 405, "method-not-allowed"),
    ] {
        let response = client().get(format!("{base}{path}")).send().await.expect("answer");
        assert_eq!(response.headers().contains_key("retry-after"), status == 503, "{path}");
        let body = problem(response).await;
        assert_eq!((body["status"].as_u64(), body["code"].as_str()), (Some(status), Some(code)), "{path}");
        assert!(!body.to_string().contains("hunter2"), "{body}");
    }
    shutdown.cancel();
}

#[tokio::test]
async fn what_passes_by_itself_may_be_sent_again() {
    let database = waybill_testkit::Database::create(&[]).await;
    for (state, status) in [
        ("57014", 503),
        ("55P03", 503),
        ("57P01", 503),
        ("53300", 503),
        ("08006", 503),
        ("23505", 500),
        ("42703", 500),
    ] {
        let raise = format!("do $$ begin raise exception 'no' using errcode = '{state}'; end $$");
        let error =
            sqlx::raw_sql(sqlx::AssertSqlSafe(raise)).execute(&database.pool).await.expect_err("raised");
        let answer = ApiError::from(error).into_response();
        assert_eq!(answer.status().as_u16(), status, "{state}");
        assert_eq!(answer.headers().contains_key("retry-after"), status == 503, "{state}");
    }
}

#[tokio::test]
async fn bodies_are_bounded_and_typed() {
    let (base, shutdown) = start().await;
    let post = |body: String, kind: &'static str| {
        client().post(format!("{base}/echo")).header("content-type", kind).body(body).send()
    };
    let fits = format!(r#"{{"text":"{}"}}"#, "x".repeat(BODY_LIMIT - 11));
    assert_eq!(fits.len(), BODY_LIMIT);
    let answer = post(fits.clone(), "application/json; charset=utf-8").await.expect("answer");
    assert_eq!(answer.status(), 200);
    for (body, kind, code) in [
        (format!("{fits} "), "application/json", "payload-too-large"),
        (fits, "text/plain", "unsupported-media-type"),
        ("{".to_owned(), "application/json", "invalid-request"),
        (r#"{"text":1}"#.to_owned(), "application/json", "validation-failed"),
        (r#"{"text":"a","more":1}"#.to_owned(), "application/json", "validation-failed"),
    ] {
        let body = problem(post(body, kind).await.expect("answer")).await;
        assert_eq!(body["code"], code);
    }
    shutdown.cancel();
}

#[tokio::test]
async fn a_plain_request_id_of_the_caller_is_kept() {
    let (base, shutdown) = start().await;
    for (given, kept) in [("abc-123", true), ("a b", false), ("", false)] {
        let response = client()
            .get(format!("{base}/teapot"))
            .header("x-request-id", given)
            .send()
            .await
            .expect("answer");
        let id = response.headers()["x-request-id"].to_str().expect("text").to_owned();
        assert_eq!(id == given, kept, "{given:?} became {id:?}");
    }
    shutdown.cancel();
}

#[tokio::test]
async fn a_taken_port_is_named() {
    let taken = bind("HTTP_LISTEN", "127.0.0.1:0".parse().expect("address")).await.expect("binds");
    let address = taken.local_addr().expect("bound");
    let error = bind("HTTP_LISTEN", address).await.expect_err("taken").to_string();
    assert!(error.contains("HTTP_LISTEN") && error.contains(&address.to_string()), "{error}");
}
