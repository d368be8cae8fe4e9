//! `/internal/consumer`: subscriptions, what a replay would meet, parked keys, the breaker.

mod lines;

use axum::extract::{FromRef, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use waybill_consumer::{MAX_CHECKED, OperationError, Operations};
use waybill_service::auth::Verifier;
use waybill_service::http::{self, ApiError};

use crate::api;
use crate::caller::{Actor, Viewer};
use crate::query::{Params, invalid, limit, parse};

use lines::Lines;

/// Path of the route whose bodies are large.
pub(crate) const CHECK: &str = "/internal/consumer/check";

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
pub fn router(operations: Operations, prefix: impl Into<String>, verifier: Verifier) -> Router {
    let lines = Lines { operations, prefix: prefix.into() };
    Router::new()
        .route("/internal/consumer", get(subscriptions))
        .route(CHECK, post(check))
        .route("/internal/consumer/keys", get(keys))
        .route("/internal/consumer/keys/release", post(release))
        .route("/internal/consumer/resume", post(resume))
        .with_state(Api { lines, verifier })
}

async fn subscriptions(State(api): State<Api>, _: Viewer) -> Json<api::Subscriptions> {
    Json(api::Subscriptions { subscriptions: api.lines.subscriptions().await })
}

/// Changes nothing, although it is a POST: values do not fit into a query.
async fn check(
    State(api): State<Api>,
    _: Viewer,
    http::Json(check): http::Json<api::Check>,
) -> Result<Json<api::Checked>, ApiError> {
    let api::Check { topic, group, messages } = check;
    if messages.len() > MAX_CHECKED {
        return Err(invalid("/messages", format_args!("must be at most {MAX_CHECKED}")));
    }
    let decode = |(place, message): (usize, api::CheckMessage)| {
        let value = message.value.map(|text| STANDARD.decode(text)).transpose();
        let value =
            value.map_err(|_| invalid(format!("/messages/{place}/value"), "must be base64 or null"))?;
        Ok(waybill_consumer::Check { message_id: message.message_id, value })
    };
    let messages = messages.into_iter().enumerate().map(decode).collect::<Result<_, ApiError>>()?;
    let messages = api.lines.check(&topic, &group, messages).await.map_err(refused)?;
    Ok(Json(api::Checked { messages }))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    topic: Option<String>,
    group: Option<String>,
    after: Option<String>,
    limit: Option<String>,
}

async fn keys(
    State(api): State<Api>,
    _: Viewer,
    Params(wanted): Params<Wanted>,
) -> Result<Json<api::Keys>, ApiError> {
    let limit = i64::from(limit(wanted.limit.as_deref())?);
    let after = parse("/after", "a cursor of an earlier page", wanted.after.as_deref())?.unwrap_or(0);
    let (topic, group) = (wanted.topic.as_deref(), wanted.group.as_deref());
    // One more tells whether there is a next page.
    let mut keys = api.lines.parked_keys(topic, group, after, limit + 1).await.map_err(refused)?;
    let kept = usize::try_from(limit).unwrap_or(usize::MAX);
    let more = keys.len() > kept;
    keys.truncate(kept);
    let next = keys.last().filter(|_| more).map(|(id, _)| id.to_string());
    Ok(Json(api::Keys { keys: keys.into_iter().map(|(_, key)| key).collect(), next }))
}

async fn release(
    State(api): State<Api>,
    Actor(subject): Actor,
    http::Json(release): http::Json<api::Release>,
) -> Result<Json<api::Released>, ApiError> {
    let api::Release { topic, group, key, key_encoding, keyless } = release;
    let key = match key_encoding {
        api::KeyEncoding::Utf8 => key.into_bytes(),
        api::KeyEncoding::Base64 => STANDARD.decode(key).map_err(|_| invalid("/key", "must be base64"))?,
    };
    let released = api.lines.release(&topic, &group, &key, keyless).await.map_err(refused)?;
    tracing::info!(%subject, topic, group, released, "an operator released a parked key");
    Ok(Json(api::Released { released }))
}

async fn resume(
    State(api): State<Api>,
    Actor(subject): Actor,
    http::Json(api::Resume { topic, group }): http::Json<api::Resume>,
) -> Result<Json<api::Resumed>, ApiError> {
    let resumed = api.lines.operations.resume(&topic, &group).map_err(refused)?;
    tracing::info!(%subject, topic, group, resumed, "an operator resumed a subscription");
    Ok(Json(api::Resumed { resumed }))
}

fn refused(error: OperationError) -> ApiError {
    match error {
        OperationError::Unknown { .. } => {
            ApiError::new(StatusCode::NOT_FOUND, "subscription-not-found", error.to_string())
        }
        OperationError::TooMany { .. } => invalid("/messages", error),
        OperationError::Database(error) => error.into(),
    }
}
