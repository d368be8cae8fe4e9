//! Routes of searching. Everything here needs the role `view`; payloads need `payload`.

use axum::Json;
use axum::body::Body;
use axum::extract::State as Held;
use axum::http::HeaderValue;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use waybill_service::auth::Role;
use waybill_service::http::{ApiError, Params, Segment, field};

use super::view::{Detail, Groups, Items, Topics};
use super::{Filter, export, search, store};
use crate::api::{Api, Operator};
use crate::audit::{self, Entry};

/// Elements of a page when the client does not say, and at most.
const PAGE: i64 = 50;
const MAX_PAGE: i64 = 500;
/// Lines of an export at most.
const MAX_EXPORT: i64 = 1_000_000;

/// `/v1/dlt` without acts.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(topics))
        .routes(routes!(groups))
        .routes(routes!(items))
        .routes(routes!(item))
        .routes(routes!(loops))
        .routes(routes!(export_items))
}

/// All dead-letter topics
///
/// Open count, arrivals, oldest age, and the time until retention deletes the oldest unsettled letter.
#[utoipa::path(get, path = "/v1/dlt/topics", tag = "look", responses((status = 200, description = "Topics", body = Topics)))]
async fn topics(Held(api): Held<Api>, operator: Operator) -> Result<Json<Topics>, ApiError> {
    operator.require(Role::View)?;
    Ok(Json(Topics { topics: search::topics(&api.pool).await? }))
}

/// Groups of one cause
///
/// By topic, consumer group, error code and event type; the text of the error is not part of it. Without `state` those
/// with unsettled letters. Of the filter, topic, group, error, type, state and time narrow groups; the rest is
/// refused.
#[utoipa::path(get, path = "/v1/dlt/groups", tag = "look", params(Filter), responses((status = 200, description = "Groups", body = Groups)))]
async fn groups(
    Held(api): Held<Api>,
    operator: Operator,
    Params(filter): Params<Filter>,
) -> Result<Json<Groups>, ApiError> {
    operator.require(Role::View)?;
    Ok(Json(Groups { groups: search::groups(&api.pool, &api.names, &filter).await? }))
}

/// Beside the filter. Not one struct with it: flattened fields lose their types in a query.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Page {
    /// Elements of a page: 50 if absent, at most 500.
    #[serde(deserialize_with = "field::optional_integer::<1, MAX_PAGE, _, _>")]
    #[param(minimum = 1, maximum = 500)]
    limit: Option<i64>,
    /// `next` of the page before.
    #[serde(deserialize_with = "field::optional_text::<1, 32, _>")]
    #[param(min_length = 1, max_length = 32)]
    cursor: Option<String>,
}

/// Dead letters, newest first
#[utoipa::path(get, path = "/v1/dlt/items", tag = "look", params(Filter, Page), responses((status = 200, description = "One page", body = Items)))]
async fn items(
    Held(api): Held<Api>,
    operator: Operator,
    crate::api::Filtered(filter, page): crate::api::Filtered<Page>,
) -> Result<Json<Items>, ApiError> {
    operator.require(Role::View)?;
    let limit = page.limit.unwrap_or(PAGE);
    Ok(Json(search::list(&api.pool, &api.names, &filter, page.cursor.as_deref(), limit).await?))
}

/// One dead letter
///
/// With its history, its headers in order, and its value for those who have the role `payload`.
#[utoipa::path(
    get,
    path = "/v1/dlt/items/{id}",
    tag = "look",
    params(("id" = Uuid, Path, description = "Item id")),
    responses((status = 200, description = "The letter", body = Detail)),
)]
async fn item(
    Held(api): Held<Api>,
    operator: Operator,
    Segment(id): Segment<Uuid>,
) -> Result<Json<Detail>, ApiError> {
    operator.require(Role::View)?;
    let may_see = operator.principal.roles.has(Role::Payload);
    let url = api.settings.trace_url.as_deref();
    Ok(Json(search::find(&api.pool, &api.names, id, may_see, url).await?))
}

/// Letters at the loop cap
///
/// Replayed as often as is allowed, and dead again: no plan takes them any more.
#[utoipa::path(get, path = "/v1/dlt/loops", tag = "look", responses((status = 200, description = "The first 500", body = Items)))]
async fn loops(Held(api): Held<Api>, operator: Operator) -> Result<Json<Items>, ApiError> {
    operator.require(Role::View)?;
    Ok(Json(search::loops(&api.pool, api.settings.loop_cap, MAX_PAGE).await?))
}

/// Beside the filter.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Export {
    /// With values; needs the role `payload`.
    payload: Option<bool>,
    /// Lines at most, 1,000,000 if absent.
    #[serde(deserialize_with = "field::optional_integer::<1, MAX_EXPORT, _, _>")]
    #[param(minimum = 1, maximum = 1_000_000)]
    limit: Option<i64>,
}

/// Export
///
/// One line of JSON a letter, newest first. The value is in it when `payload=true` and the token has the role.
#[utoipa::path(
    get,
    path = "/v1/dlt/export",
    tag = "look",
    params(Filter, Export),
    responses((status = 200, description = "Lines of JSON", body = String, content_type = "application/x-ndjson")),
)]
async fn export_items(
    Held(api): Held<Api>,
    operator: Operator,
    crate::api::Filtered(filter, wanted): crate::api::Filtered<Export>,
) -> Result<Response, ApiError> {
    operator.require(Role::View)?;
    let payload = wanted.payload.unwrap_or(false);
    if payload {
        operator.require(Role::Payload)?;
    }
    let mut tx = store::begin(&api.pool).await.map_err(super::Error::from)?;
    let selection = filter.select(&mut tx, &api.names).await?;
    let entry = Entry::new(&operator.principal, "export", &filter).count("payload", i64::from(payload));
    audit::add(&mut tx, &entry).await?;
    tx.commit().await?;
    let limit = wanted.limit.unwrap_or(MAX_EXPORT);
    let body = Body::from_stream(export::lines(api.pool, selection, payload, limit));
    let kind = HeaderValue::from_static("application/x-ndjson");
    Ok(([(CONTENT_TYPE, kind)], body).into_response())
}
