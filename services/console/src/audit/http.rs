//! `GET /v1/audit` and one act with what it did to each message.

use axum::Json;
use axum::extract::State as Held;
use axum::http::StatusCode;
use serde::Deserialize;
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use waybill_service::auth::Role;
use waybill_service::http::{ApiError, Params, Segment, field};

use super::{Act, Acts, VERBS, store};
use crate::api::{Api, Operator};

/// `/v1/audit`.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(find))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct Wanted {
    /// Only acts with a smaller id; ids begin at 1.
    #[serde(deserialize_with = "field::optional_integer::<2, { i64::MAX }, _, _>")]
    #[param(minimum = 2, maximum = 9223372036854775807i64)]
    before: Option<i64>,
    /// Only this verb, for example `replay`.
    #[serde(deserialize_with = "field::optional_text::<1, 32, _>")]
    #[param(min_length = 1, max_length = 32)]
    verb: Option<String>,
    /// Only this person's.
    subject: Option<Uuid>,
    /// Elements of a page: 100 if absent, at most 500.
    #[serde(deserialize_with = "field::optional_integer::<1, 500, _, _>")]
    #[param(minimum = 1, maximum = 500)]
    limit: Option<i64>,
}

/// Acts, latest first
#[utoipa::path(get, path = "/v1/audit", tag = "audit", params(Wanted), responses((status = 200, description = "One page", body = Acts)))]
async fn list(
    Held(api): Held<Api>,
    operator: Operator,
    Params(wanted): Params<Wanted>,
) -> Result<Json<Acts>, ApiError> {
    operator.require(Role::View)?;
    if wanted.verb.as_deref().is_some_and(|verb| !VERBS.contains(&verb)) {
        return Err(ApiError::invalid("/verb", format!("must be one of {}", VERBS.join(", "))));
    }
    let limit = wanted.limit.unwrap_or(100);
    let (verb, subject) = (wanted.verb.as_deref(), wanted.subject);
    let mut acts = store::list(&api.pool, wanted.before, verb, subject, limit + 1).await?;
    let more = acts.len() as i64 > limit;
    acts.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
    let next = acts.last().filter(|_| more).map(|act| act.audit_id);
    Ok(Json(Acts { acts, next }))
}

/// One act
///
/// With what it did to each message.
#[utoipa::path(
    get,
    path = "/v1/audit/{id}",
    tag = "audit",
    params(("id" = i64, Path, description = "Audit id")),
    responses((status = 200, description = "The act", body = Act)),
)]
async fn find(
    Held(api): Held<Api>,
    operator: Operator,
    Segment(id): Segment<i64>,
) -> Result<Json<Act>, ApiError> {
    operator.require(Role::View)?;
    let found = store::list(&api.pool, id.checked_add(1), None, None, 1).await?;
    let act = found.into_iter().find(|act| act.audit_id == id);
    let mut act =
        act.ok_or_else(|| ApiError::new(StatusCode::NOT_FOUND, "not-found", "there is no such act"))?;
    act.results = Some(store::results(&api.pool, id).await?);
    Ok(Json(act))
}
