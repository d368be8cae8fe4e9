//! The description of the API, and the page that shows it.
//!
//! Paths, parameters, bodies and successes are collected from the handlers, so none can be forgotten; the failures come
//! from the table of problems, with one example each.

use std::collections::BTreeMap;

use axum::Router;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};
use utoipa::openapi::{Info, OpenApi, OpenApiBuilder};
use utoipa_swagger_ui::{Config, SwaggerUi};
use waybill_service::http::ApiError;

use crate::problems::{PAGES, Page};

/// Failures of every route behind the door.
const GUARDED: &[&str] = &[
    "unauthorized",
    "not-acceptable",
    "payload-too-large",
    "rate-limited",
    "head-too-large",
    "internal-error",
    "overloaded",
    "database-unavailable",
];

/// Failures of an operation beside those.
const OWN: &[(&str, &str, &[&str])] = &[
    (
        "/v1/orders",
        "post",
        &[
            "invalid-request",
            "validation-failed",
            "idempotency-key-missing",
            "idempotency-key-invalid",
            "forbidden",
            "request-timeout",
            "idempotency-in-progress",
            "unsupported-media-type",
            "unsupported-content-encoding",
            "idempotency-key-reused",
            "amount-mismatch",
            "total-too-large",
        ],
    ),
    ("/v1/orders", "get", &["invalid-request", "validation-failed", "invalid-cursor"]),
    ("/v1/orders/{id}", "get", &["order-not-found"]),
    ("/v1/products", "get", &["invalid-request", "validation-failed", "invalid-cursor"]),
    ("/problems/{slug}", "get", &["not-found"]),
];

/// Nothing but what comes from here; the page's own style sheet sets styles of elements.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What the routes are added to.
pub(crate) fn base() -> OpenApi {
    let info = Info::builder()
        .title("Waybill orders")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Takes orders. Amounts are integers in the currency's minor unit, times RFC 3339 in UTC. An integer is a JSON \
             number whose value is one: `2`, `2.0` and `2e0` are the same, in bodies and in queries. A failure is \
             `application/problem+json` with a stable `code`, explained at `/problems/{code}`.",
        ))
        .build();
    OpenApiBuilder::new().info(info).build()
}

/// Adds to the routes' own description the failures, the token, and the routes of the frame.
pub(crate) fn complete(routes: OpenApi) -> Value {
    let mut description = serde_json::to_value(routes).unwrap_or_default();
    let paths = &mut description["paths"];
    for (path, tag, summary, media, ready) in [
        ("/healthz", "health", "Whether the process runs", "text/plain", false),
        ("/readyz", "health", "Whether requests can be answered", "application/json", true),
        ("/openapi.json", "description", "This description", "application/json", false),
    ] {
        let schema =
            if media == "text/plain" { json!({"type": "string"}) } else { json!({"type": "object"}) };
        let content = json!({media: {"schema": schema}});
        let mut answers = json!({"200": {"description": "Yes", "content": content}});
        if ready {
            answers["503"] = json!({"description": "Not now; the checks say why", "content": content});
        }
        paths[path]["get"] = json!({"tags": [tag], "summary": summary, "responses": answers});
    }
    if let Some(paths) = paths.as_object_mut() {
        for (path, operations) in paths {
            for (method, operation) in operations.as_object_mut().into_iter().flatten() {
                finish(path, method, operation);
            }
        }
    }
    description["components"]["schemas"]["Problem"] = problem_schema();
    description["components"]["securitySchemes"] = json!({"bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "JWT signed with ES256 or RS256: `sub` is the customer's id, `scope` one of `customer`, `operator`, \
                        `service`",
    }});
    description
}

fn finish(path: &str, method: &str, operation: &mut Value) {
    let name = path.replace(['/', '{', '}', '.'], " ");
    let name = name.split_whitespace().collect::<Vec<_>>().join("-");
    operation["operationId"] = json!(format!("{method}-{name}"));
    let guarded = path.starts_with("/v1/");
    let mut slugs: Vec<&str> = if guarded { GUARDED.to_vec() } else { vec![] };
    slugs.extend(OWN.iter().filter(|own| own.0 == path && own.1 == method).flat_map(|own| own.2));
    let mut by_status = BTreeMap::<u16, Vec<&Page>>::new();
    for page in PAGES.iter().filter(|page| slugs.contains(&page.slug)) {
        by_status.entry(page.status).or_default().push(page);
    }
    for (status, pages) in by_status {
        operation["responses"][status.to_string()] = failure(status, &pages);
    }
    if guarded {
        operation["security"] = json!([{"bearer": []}]);
    }
    for answer in operation["responses"].as_object_mut().into_iter().flatten().map(|(_, answer)| answer) {
        let schema = json!({"type": "string", "minLength": 1, "maxLength": 64});
        let text = "The caller's `X-Request-Id`, or a new one; it finds the request in the logs";
        answer["headers"]["X-Request-Id"] = json!({"description": text, "schema": schema});
    }
}

fn failure(status: u16, pages: &[&Page]) -> Value {
    let meanings: Vec<_> = pages.iter().map(|page| format!("`{}`: {}", page.slug, page.meaning)).collect();
    let example =
        |page: &&Page| (page.slug.to_owned(), json!({"summary": page.meaning, "value": example(page)}));
    let examples: Map<String, Value> = pages.iter().map(example).collect();
    let schema = json!({"$ref": "#/components/schemas/Problem"});
    let mut answer = json!({
        "description": meanings.join("\n\n"),
        "content": {"application/problem+json": {"schema": schema, "examples": examples}},
    });
    let header = match status {
        401 => Some(("WWW-Authenticate", json!({"type": "string"}), "`Bearer`")),
        409 | 429 | 503 => Some(("Retry-After", json!({"type": "integer", "minimum": 1}), "Seconds to wait")),
        _ => None,
    };
    if let Some((name, schema, text)) = header {
        answer["headers"][name] = json!({"description": text, "required": true, "schema": schema});
    }
    answer
}

fn example(page: &Page) -> Value {
    let status = StatusCode::from_u16(page.status).ok();
    let title = status.and_then(|status| status.canonical_reason()).unwrap_or("Error");
    let mut problem = json!({
        "type": format!("/problems/{}", page.slug),
        "title": title,
        "status": page.status,
        "code": page.slug,
        "detail": page.meaning,
        "requestId": "0199f2a4-7c2e-7b7e-8a55-6f1d2c3b4a59",
    });
    if page.slug == "validation-failed" {
        problem["errors"] =
            json!([{"pointer": "/items/0/quantity", "detail": "must be an integer from 1 to 1000"}]);
    }
    problem
}

fn problem_schema() -> Value {
    let codes: Vec<_> = PAGES.iter().map(|page| page.slug).collect();
    let text = json!({"type": "string"});
    json!({
        "type": "object",
        "description": "A failure, by RFC 9457",
        "required": ["type", "title", "status", "code", "detail", "requestId"],
        "properties": {
            "type": {"type": "string", "format": "uri-reference", "description": "Page that explains the code"},
            "title": {"type": "string", "description": "The status in words"},
            "status": {"type": "integer", "minimum": 400, "maximum": 599, "description": "The HTTP status"},
            "code": {"type": "string", "enum": codes, "description": "Stable; what clients decide by"},
            "detail": {"type": "string", "description": "This case, for people"},
            "requestId": {"type": "string", "description": "Finds the request in the logs"},
            "errors": {
                "type": "array",
                "description": "The fields at fault",
                "items": {
                    "type": "object",
                    "required": ["pointer", "detail"],
                    "properties": {
                        "pointer": {"type": "string", "description": "JSON pointer of the field; of a query `/name`"},
                        "detail": text,
                    },
                },
            },
        },
    })
}

/// `/docs`: Swagger UI from files that are in the binary. The policy keeps it from loading anything else, and the online
/// validator of its makers is off.
pub(crate) fn page() -> Router {
    let config = Config::from("/openapi.json").validator_url("none").persist_authorization(false);
    Router::from(SwaggerUi::new("/docs").config(config)).layer(from_fn(own_files_only))
}

async fn own_files_only(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    if response.status() == StatusCode::NOT_FOUND {
        return ApiError::new(StatusCode::NOT_FOUND, "not-found", "there is nothing at this path")
            .into_response();
    }
    let headers = response.headers_mut();
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_of_a_request_is_described_by_an_operation() {
        for page in PAGES {
            let own = OWN.iter().any(|own| own.2.contains(&page.slug));
            // A method that a path does not take is no operation.
            let none = page.slug == "method-not-allowed";
            assert!(own || none || GUARDED.contains(&page.slug), "{}", page.slug);
        }
        for slug in OWN.iter().flat_map(|own| own.2).chain(GUARDED) {
            assert!(PAGES.iter().any(|page| page.slug == *slug), "{slug} has no page");
        }
    }
}
