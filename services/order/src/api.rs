//! All routes of the service, and the description made of them.

use axum::middleware::from_fn_with_state;
use axum::routing::get;
use axum::{Json, Router};
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;

use crate::app::AppState;
use crate::door::door;
use crate::{openapi, orders, problems, products};

/// The routes; `/healthz` and `/readyz` are the frame's.
pub(crate) fn router(state: AppState) -> Router {
    let (routes, description) = routes(state);
    let description = openapi::complete(description);
    let page = openapi::page();
    routes.route("/openapi.json", get(async move || Json(description))).merge(page)
}

fn routes(state: AppState) -> (Router, OpenApi) {
    // Only matched routes have the door before them: an unknown path is 404 and a wrong method 405 for everybody.
    let guarded = OpenApiRouter::new()
        .merge(orders::router())
        .merge(products::router())
        .route_layer(from_fn_with_state(state.clone(), door));
    OpenApiRouter::with_openapi(openapi::base())
        .merge(guarded)
        .merge(problems::router())
        .with_state(state)
        .split_for_parts()
}
