//! The door before every route of `/v1`: what a request must pass before anything is done for it.

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::{ACCEPT, CACHE_CONTROL};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use waybill_service::auth::Principal;
use waybill_service::http::ApiError;

use crate::app::AppState;

/// In this order: the queue before the database (the cheapest, and the one that must hold under load), the token, the
/// principal's rate, the form of the answer. Answers hold personal data and are stale at once: nobody may store them.
pub(crate) async fn door(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let mut response = match admit(&state, request).await {
        Ok(request) => next.run(request).await,
        Err(error) => error.into_response(),
    };
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn admit(state: &AppState, request: Request) -> Result<Request, ApiError> {
    state.orders.gate.check()?;
    let (mut parts, body) = request.into_parts();
    let principal = Principal::from_request_parts(&mut parts, state).await?;
    state.rate.check(principal.customer)?;
    if !takes_json(&parts.headers) {
        let detail = "this service answers with application/json, which the header Accept does not take";
        return Err(ApiError::new(StatusCode::NOT_ACCEPTABLE, "not-acceptable", detail));
    }
    // The handlers' own look finds it here, and does not verify again.
    parts.extensions.insert(principal);
    Ok(Request::from_parts(parts, body))
}

/// Whether `Accept` is absent or has a range that JSON is in and whose weight is not 0. What is not text or not a list
/// of ranges takes nothing.
fn takes_json(headers: &HeaderMap) -> bool {
    if !headers.contains_key(ACCEPT) {
        return true;
    }
    let lines = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let mut ranges = lines.flat_map(|line| line.split(',')).map(str::trim).peekable();
    // `Accept:` with nothing in it is like none.
    if ranges.peek().is_some_and(|first| first.is_empty()) {
        return true;
    }
    ranges.any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let weight = parts.find_map(|part| part.strip_prefix("q=").or(part.strip_prefix("Q=")));
        let refused = weight.is_some_and(|weight| weight.parse::<f32>().is_ok_and(|weight| weight <= 0.0));
        matches!(kind.as_str(), "*/*" | "application/*" | "application/json") && !refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_taken_by_its_range() {
        for (accept, taken) in [
            ("*/*", true),
            ("application/json", true),
            ("text/html, application/*;q=0.1", true),
            ("Application/JSON; charset=utf-8", true),
            ("", true),
            ("text/html", false),
            ("application/json;q=0", false),
            ("application/jsonp", false),
            ("application/xml, text/*", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(takes_json(&headers), taken, "{accept}");
        }
        assert!(takes_json(&HeaderMap::new()));
    }
}
