//! All routes, the description made of them, and what handlers are given.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequestParts};
use axum::http::HeaderValue;
use axum::http::header::{AUTHORIZATION, CACHE_CONTROL};
use axum::http::request::Parts;
use axum::middleware::map_response;
use axum::response::Response;
use axum::routing::get;
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use sqlx::PgPool;
use utoipa::openapi::OpenApi;
use utoipa_axum::router::OpenApiRouter;
use waybill_service::auth::{Principal, Role, Verifier};
use waybill_service::http::{ApiError, params};

use crate::letters::Filter;
use crate::replays::Runs;
use crate::services::Services;
use crate::{Names, Settings, archive, audit, letters, openapi, plans, problems, replays, services};

/// What handlers are given.
#[derive(Debug, Clone)]
pub(crate) struct Api {
    pub(crate) pool: PgPool,
    pub(crate) verifier: Verifier,
    pub(crate) names: Names,
    pub(crate) settings: Arc<Settings>,
    pub(crate) services: Services,
    pub(crate) runs: Runs,
}

impl FromRef<Api> for Verifier {
    fn from_ref(api: &Api) -> Self {
        api.verifier.clone()
    }
}

/// The routes; `/healthz` and `/readyz` are the frame's.
pub(crate) fn router(api: Api) -> Router {
    let (routes, description) = routes(api);
    let description = openapi::complete(description);
    routes.route("/openapi.json", get(async move || Json(description))).merge(openapi::page())
}

/// The description alone.
pub(crate) fn description() -> OpenApi {
    OpenApiRouter::<Api>::with_openapi(openapi::base())
        .merge(guarded())
        .merge(problems::router())
        .into_openapi()
}

fn guarded() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .merge(letters::http::router())
        .merge(plans::http::router())
        .merge(replays::http::router())
        .merge(archive::router())
        .merge(audit::router())
        .merge(services::http::router())
}

fn routes(api: Api) -> (Router, OpenApi) {
    OpenApiRouter::with_openapi(openapi::base())
        .merge(guarded().layer(map_response(no_store)))
        .merge(problems::router())
        .with_state(api)
        .split_for_parts()
}

/// Answers are for one person, and stale at once.
async fn no_store(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Who calls, with the token itself: services are asked in the operator's own name.
#[derive(Debug, Clone)]
pub(crate) struct Operator {
    pub(crate) principal: Principal,
    pub(crate) token: String,
}

impl Operator {
    /// Refuses customers, and staff without the role.
    pub(crate) fn require(&self, role: Role) -> Result<(), ApiError> {
        self.principal.require_role(role)
    }
}

impl FromRequestParts<Api> for Operator {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, api: &Api) -> Result<Self, ApiError> {
        let principal = Principal::from_request_parts(parts, api).await?;
        let header = parts.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = header.and_then(|text| text.split_once(' ')).map_or("", |(_, token)| token.trim());
        Ok(Self { principal, token: token.to_owned() })
    }
}

/// A filter and what else a query says.
#[derive(Debug)]
pub(crate) struct Filtered<T>(pub(crate) Filter, pub(crate) T);

impl<T: DeserializeOwned + Send> FromRequestParts<Api> for Filtered<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, ApiError> {
        let query = parts.uri.query().unwrap_or_default();
        let name = |part: &&str| Filter::FIELDS.contains(&part.split('=').next().unwrap_or_default());
        let (filter, rest): (Vec<&str>, Vec<&str>) = query.split('&').partition(name);
        Ok(Self(params(&filter.join("&"))?, params(&rest.join("&"))?))
    }
}
