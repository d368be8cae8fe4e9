//! `/internal/consumer`: subscriptions, what a replay would meet, parked keys, the breaker.

mod lines;

use axum::Json;
use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use waybill_consumer::{MAX_CHECKED, OperationError, Operations};
use waybill_service::auth::Verifier;
use waybill_service::http::{self, ApiError, Params, field};

use crate::api::{self, LONGEST_NAME};
use crate::caller::{Actor, Viewer};

use lines::Lines;

/// Path of the route whose bodies are large.
pub(crate) const CHECK: &str = "/internal/consumer/check";
/// Elements of a page when the caller does not say, and at most.
pub(crate) const PAGE: i64 = 50;
pub(crate) const PAGE_MAX: i64 = 500;

#[derive(Clone)]
struct Api {
    lines: Lines,
    verifier: Verifier,
}

impl FromRef<Api> for Verifier {
    fn from_ref(api: &Api) -> Self {
        api.verifier.clone()
    }
}

/// The routes, over [`waybill_consumer::Consumer::operations`] and the installation's prefix.
pub fn router(operations: Operations, prefix: impl Into<String>, verifier: Verifier) -> OpenApiRouter {
    let lines = Lines { operations, prefix: prefix.into() };
    OpenApiRouter::new()
        .routes(routes!(subscriptions))
        .routes(routes!(check))
        .routes(routes!(keys))
        .routes(routes!(release))
        .routes(routes!(resume))
        .with_state(Api { lines, verifier })
}

/// Every subscription of this service
#[utoipa::path(get, path = "/internal/consumer", tag = "consumer", responses((status = 200, description = "Subscriptions", body = api::Subscriptions)))]
async fn subscriptions(State(api): State<Api>, _: Viewer) -> Json<api::Subscriptions> {
    Json(api::Subscriptions { subscriptions: api.lines.subscriptions().await })
}

/// What a replay of messages would meet
///
/// Changes nothing, although it is a POST: values do not fit into a query.
#[utoipa::path(post, path = "/internal/consumer/check", tag = "consumer", request_body = api::Check, responses((status = 200, description = "One for each message, in order", body = api::Checked)))]
async fn check(
    State(api): State<Api>,
    _: Viewer,
    http::Json(check): http::Json<api::Check>,
) -> Result<Json<api::Checked>, ApiError> {
    let api::Check { topic, group, messages } = check;
    if messages.len() > MAX_CHECKED {
        return Err(too_many());
    }
    let decode = |(place, message): (usize, api::CheckMessage)| {
        let value = message.value.map(|text| STANDARD.decode(text)).transpose();
        let value = value
            .map_err(|_| ApiError::invalid(format!("/messages/{place}/value"), "must be base64 or null"))?;
        Ok(waybill_consumer::Check { message_id: message.message_id, value })
    };
    let messages = messages.into_iter().enumerate().map(decode).collect::<Result<_, ApiError>>()?;
    let messages = api.lines.check(&topic, &group, messages).await.map_err(refused)?;
    Ok(Json(api::Checked { messages }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Wanted {
    /// Only of this source topic.
    #[serde(default, deserialize_with = "field::optional_text::<1, LONGEST_NAME, _>")]
    #[param(min_length = 1, max_length = 249)]
    topic: Option<String>,
    /// Only of this group.
    #[serde(default, deserialize_with = "field::optional_text::<1, LONGEST_NAME, _>")]
    #[param(min_length = 1, max_length = 249)]
    group: Option<String>,
    /// `next` of the page before.
    #[serde(default, deserialize_with = "field::optional_integer::<0, { i64::MAX }, _, _>")]
    #[param(minimum = 0, maximum = 9223372036854775807i64)]
    after: Option<i64>,
    /// Elements of a page: 50 if absent, at most 500.
    #[serde(default, deserialize_with = "field::optional_integer::<1, PAGE_MAX, _, _>")]
    #[param(minimum = 1, maximum = 500)]
    limit: Option<i64>,
}

/// Parked keys
///
/// The longest parked first.
#[utoipa::path(get, path = "/internal/consumer/keys", tag = "consumer", params(Wanted), responses((status = 200, description = "One page", body = api::Keys)))]
async fn keys(
    State(api): State<Api>,
    _: Viewer,
    Params(wanted): Params<Wanted>,
) -> Result<Json<api::Keys>, ApiError> {
    let (limit, after) = (wanted.limit.unwrap_or(PAGE), wanted.after.unwrap_or(0));
    let (topic, group) = (wanted.topic.as_deref(), wanted.group.as_deref());
    // One more tells whether there is a next page.
    let mut keys = api.lines.parked_keys(topic, group, after, limit + 1).await.map_err(refused)?;
    let kept = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = keys.len() > kept;
    keys.truncate(kept);
    let next = keys.last().filter(|_| more).map(|(id, _)| id.to_string());
    Ok(Json(api::Keys { keys: keys.into_iter().map(|(_, key)| key).collect(), next }))
}

/// Let a blocked key go on
#[utoipa::path(post, path = "/internal/consumer/keys/release", tag = "consumer", request_body = api::Release, responses((status = 200, description = "Whether it was blocked", body = api::Released)))]
async fn release(
    State(api): State<Api>,
    Actor(subject): Actor,
    http::Json(release): http::Json<api::Release>,
) -> Result<Json<api::Released>, ApiError> {
    let api::Release { topic, group, key, key_encoding, keyless } = release;
    let key = match key_encoding {
        api::KeyEncoding::Utf8 => key.into_bytes(),
        api::KeyEncoding::Base64 => {
            STANDARD.decode(key).map_err(|_| ApiError::invalid("/key", "must be base64"))?
        }
    };
    let released = api.lines.release(&topic, &group, &key, keyless).await.map_err(refused)?;
    tracing::info!(%subject, topic, group, released, "an operator released a parked key");
    Ok(Json(api::Released { released }))
}

/// Go on after a stop
///
/// In the process that answers.
#[utoipa::path(post, path = "/internal/consumer/resume", tag = "consumer", request_body = api::Resume, responses((status = 200, description = "Whether it was stopped", body = api::Resumed)))]
async fn resume(
    State(api): State<Api>,
    Actor(subject): Actor,
    http::Json(api::Resume { topic, group }): http::Json<api::Resume>,
) -> Result<Json<api::Resumed>, ApiError> {
    let resumed = api.lines.operations.resume(&topic, &group).map_err(refused)?;
    tracing::info!(%subject, topic, group, resumed, "an operator resumed a subscription");
    Ok(Json(api::Resumed { resumed }))
}

fn too_many() -> ApiError {
    ApiError::invalid("/messages", format!("must have at most {MAX_CHECKED} elements"))
}

fn refused(error: OperationError) -> ApiError {
    match error {
        OperationError::Unknown { .. } => {
            ApiError::new(StatusCode::NOT_FOUND, "subscription-not-found", error.to_string())
        }
        OperationError::TooMany { .. } => too_many(),
        OperationError::Database(error) => error.into(),
    }
}
