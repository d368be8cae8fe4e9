//! The description of the API, and the page that shows it. Paths, parameters and successes are collected from the
//! handlers; failures are problems of one form.

use axum::Router;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use utoipa::openapi::{Info, OpenApi, OpenApiBuilder};
use utoipa_swagger_ui::{Config, SwaggerUi};
use waybill_service::http::ApiError;

use crate::problems::PAGES;

/// Nothing but what comes from here; the page's own style sheet sets styles of elements.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The whole description, as `/openapi.json` has it.
#[must_use]
pub fn description() -> Value {
    complete(crate::api::description())
}

/// What the routes are added to.
pub(crate) fn base() -> OpenApi {
    let info = Info::builder()
        .title("Waybill console")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Finds, explains, replays and archives dead letters. The token is an operator's; its claim `roles` holds some of \
             `view`, `payload` (see values) and `act`. Times are RFC 3339 in UTC. A failure is `application/problem+json` \
             with a stable `code`, explained at `/problems/{code}`.",
        ))
        .build();
    OpenApiBuilder::new().info(info).build()
}

/// Adds the failures and the token.
pub(crate) fn complete(routes: OpenApi) -> Value {
    let mut description = serde_json::to_value(routes).unwrap_or_default();
    if let Some(paths) = description["paths"].as_object_mut() {
        for (path, operations) in paths {
            for (method, operation) in operations.as_object_mut().into_iter().flatten() {
                let name = path.replace(['/', '{', '}', '.'], " ");
                let name = name.split_whitespace().collect::<Vec<_>>().join("-");
                operation["operationId"] = json!(format!("{method}-{name}"));
                let problem = json!({"schema": {"$ref": "#/components/schemas/Problem"}});
                operation["responses"]["default"] = json!({
                    "description": "A failure",
                    "content": {"application/problem+json": problem},
                });
                if path.starts_with("/v1/") {
                    operation["security"] = json!([{"bearer": []}]);
                }
            }
        }
    }
    description["components"]["schemas"]["Problem"] = problem_schema();
    description["components"]["securitySchemes"] = json!({"bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "JWT signed with ES256 or RS256: `scope` is `operator` or `service`, `roles` some of `view`, `payload`, \
                        `act`; without `roles` looking only",
    }});
    description
}

fn problem_schema() -> Value {
    let codes: Vec<_> = PAGES.iter().map(|page| page.slug).collect();
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
                    "properties": {"pointer": {"type": "string"}, "detail": {"type": "string"}},
                },
            },
        },
    })
}

/// `/docs`: Swagger UI from files that are in the binary.
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
