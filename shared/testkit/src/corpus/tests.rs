//! The corpus against a service that does one thing wrong at a time: each must be told.

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde_json::{Value, json};

use super::Corpus;

/// What is wrong with the service.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Wrong {
    Nothing,
    Fails,
    NamesNothing,
    SaysNoRange,
    TakesReversed,
    TakesUnknown,
    NoBounds,
    AnswersBare,
}

fn problem(status: u16, pointer: &str, detail: &str) -> Response {
    let body = json!({
        "type": "/problems/x", "title": "x", "status": status, "code": "x", "detail": "x", "requestId": "r",
        "errors": [{"pointer": pointer, "detail": detail}],
    });
    let headers = [(CONTENT_TYPE.as_str(), "application/problem+json"), ("x-request-id", "r")];
    (StatusCode::from_u16(status).expect("status"), headers, body.to_string()).into_response()
}

/// Judges `/x?name&since&until&limit` as it should, but for what is wrong.
async fn x(State(wrong): State<Wrong>, headers: HeaderMap, RawQuery(query): RawQuery) -> Response {
    if headers.values().any(|value| value.to_str().is_err()) {
        return problem(400, "", "must be text");
    }
    let query = query.unwrap_or_default();
    let pairs: Vec<_> =
        query.split('&').filter(|p| !p.is_empty()).map(|p| p.split_once('=').unwrap_or((p, ""))).collect();
    let of = |name: &str| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1);
    let refuse = |name: &str, detail: &str| match wrong {
        Wrong::Fails => problem(500, "", "x"),
        Wrong::AnswersBare => StatusCode::BAD_REQUEST.into_response(),
        Wrong::NamesNothing => problem(400, "", detail),
        _ => problem(400, &format!("/{name}"), detail),
    };
    for (index, (name, value)) in pairs.iter().enumerate() {
        if pairs[..index].iter().any(|pair| pair.0 == *name) {
            return refuse(name, "is given more than once");
        }
        match *name {
            "limit" if !matches!(*value, "1" | "2" | "1.0" | "1e0") => {
                let range = "must be an integer from 1 to 2";
                return refuse(name, if wrong == Wrong::SaysNoRange { "must be an i32" } else { range });
            }
            "name" | "since" | "until" if value.is_empty() || value.contains('%') || value.len() > 20 => {
                return refuse(name, "must be 1 to 20 characters");
            }
            "name" | "since" | "until" | "limit" => {}
            _ if wrong == Wrong::TakesUnknown => {}
            _ => return refuse(name.trim_start_matches("%FF"), "is not known here"),
        }
    }
    if of("since").zip(of("until")).is_some_and(|(since, until)| since >= until)
        && wrong != Wrong::TakesReversed
    {
        return refuse("until", "must be after since");
    }
    "[]".into_response()
}

fn description(wrong: Wrong) -> Value {
    let text = |name: &str| {
        let bounds = if wrong == Wrong::NoBounds { Value::Null } else { json!(20) };
        json!({"name": name, "in": "query", "schema": {"type": "string", "minLength": 1, "maxLength": bounds}})
    };
    let limit = json!({"name": "limit", "in": "query", "schema": {"type": ["integer", "null"], "minimum": 1, "maximum": 2}});
    let get = json!({"security": [{}], "parameters": [text("name"), text("since"), text("until"), limit]});
    json!({"paths": {"/x": {"get": get}}})
}

/// What the corpus says of a service with this wrong.
async fn told(wrong: Wrong) -> Result<usize, String> {
    let routes = Router::new()
        .route("/openapi.json", get(async move || description(wrong).to_string()))
        .route("/x", get(x))
        .with_state(wrong);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
    let address = listener.local_addr().expect("address");
    let server = tokio::spawn(async move { axum::serve(listener, routes).await });
    let corpus = Corpus { address, token: "t".to_owned(), bodies: Vec::new() };
    // hyper's own refusals are bare here: what a bad head gets is not this test's concern.
    let run = tokio::spawn(async move { corpus.violations().await }).await.expect("no panic");
    server.abort();
    let (sent, violations) = run;
    let own: Vec<_> = violations.into_iter().filter(|violation| violation.contains(": query ")).collect();
    if own.is_empty() { Ok(sent) } else { Err(own.join("\n")) }
}

#[tokio::test]
async fn each_kind_of_fault_is_told() {
    let sent = told(Wrong::Nothing).await.expect("nothing is wrong");
    assert!(sent > 50, "{sent}");
    for (wrong, says) in [
        (Wrong::Fails, "a fault of the service"),
        (Wrong::NamesNothing, "names none of"),
        (Wrong::SaysNoRange, "must be an integer from 1 to 2"),
        (Wrong::TakesReversed, "reversed"),
        (Wrong::TakesUnknown, "unknown zzz=1: is not refused"),
        (Wrong::NoBounds, "without bounds"),
        (Wrong::AnswersBare, "is no problem"),
    ] {
        let violations = told(wrong).await.expect_err("it is told");
        assert!(violations.contains(says), "{wrong:?}: {violations}");
    }
}
