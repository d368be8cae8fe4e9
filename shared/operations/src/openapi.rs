//! The description of a service's API, made of its routes.

use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

/// Routes beside `GET /openapi.json`, which describes them: paths, parameters, bodies and successes as the handlers say,
/// failures as problems of one form.
pub fn described(title: &str, about: &str, routes: OpenApiRouter) -> Router {
    let (routes, description) = routes.split_for_parts();
    let description = complete(title, about, description);
    routes.route("/openapi.json", get(async move || Json(description)))
}

fn complete(title: &str, about: &str, routes: OpenApi) -> Value {
    let mut description = serde_json::to_value(routes).unwrap_or_default();
    description["info"] = json!({
        "title": title,
        "version": env!("CARGO_PKG_VERSION"),
        "description": format!(
            "{about} Times are RFC 3339 in UTC. An integer is a JSON number whose value is one: `2`, `2.0` and `2e0` are the \
             same, in bodies and in queries. A failure is `application/problem+json` with a stable `code`."
        ),
    });
    for (path, operations) in description["paths"].as_object_mut().into_iter().flatten() {
        for (method, operation) in operations.as_object_mut().into_iter().flatten() {
            let name = path.replace(['/', '{', '}', '.'], " ");
            let name = name.split_whitespace().collect::<Vec<_>>().join("-");
            operation["operationId"] = json!(format!("{method}-{name}"));
            operation["security"] = json!([{"bearer": []}]);
            operation["responses"]["default"] = json!({
                "description": "A failure",
                "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
            });
        }
    }
    description["components"]["schemas"]["Problem"] = problem();
    description["components"]["securitySchemes"] = json!({"bearer": {
        "type": "http",
        "scheme": "bearer",
        "bearerFormat": "JWT",
        "description": "JWT signed with ES256 or RS256: `scope` is `customer`, `operator` or `service`; of staff, `roles` some of \
                        `view`, `payload`, `act`",
    }});
    description
}

fn problem() -> Value {
    let text = json!({"type": "string"});
    let fault = json!({
        "type": "object",
        "required": ["pointer", "detail"],
        "properties": {
            "pointer": {"type": "string", "description": "JSON pointer of the field; of a query `/name`"},
            "detail": {"type": "string", "description": "What it must be"},
        },
    });
    json!({
        "type": "object",
        "description": "A failure, by RFC 9457",
        "required": ["type", "title", "status", "code", "detail", "requestId"],
        "properties": {
            "type": text, "title": text, "detail": text,
            "status": {"type": "integer", "minimum": 400, "maximum": 599, "description": "The HTTP status"},
            "code": {"type": "string", "description": "Stable; what clients decide by"},
            "requestId": {"type": "string", "description": "Finds the request in the logs"},
            "errors": {"type": "array", "description": "The fields at fault", "items": fault},
        },
    })
}
