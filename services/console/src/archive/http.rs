//! `POST /v1/dlt/archive` and `/v1/dlt/restore`.

use std::collections::BTreeSet;

use axum::Json;
use axum::extract::State as Held;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use waybill_service::auth::Role;
use waybill_service::http::{self, ApiError, field};

use super::store;
use crate::State;
use crate::api::{Api, Operator};
use crate::audit::{self, Entry};
use crate::letters::{self, Filter, Selection};

/// Letters of one act when nothing is said.
const LIMIT: i64 = 100;
/// Ids at most.
const MAX_IDS: usize = 1000;

/// The routes.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new().routes(routes!(archive)).routes(routes!(restore))
}

/// Which letters, and why.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AwayRequest {
    /// Which letters.
    #[serde(deserialize_with = "field::object")]
    pub filter: Filter,
    /// Exactly these, instead of a filter; at most 1,000.
    #[schema(max_items = 1000)]
    pub ids: Option<Vec<Uuid>>,
    /// Letters at most, those that died first; 100 if absent, at most 100,000.
    #[serde(deserialize_with = "field::optional_integer::<1, 100_000, _, _>")]
    #[schema(minimum = 1, maximum = 100_000)]
    pub limit: Option<i64>,
    /// Everything is meant; needed where neither filter nor ids are given.
    pub all: bool,
    /// Why; for whoever asks later.
    #[serde(deserialize_with = "field::text::<1, 1000, _>")]
    #[schema(min_length = 1, max_length = 1000)]
    pub reason: String,
}

/// What came of it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Away {
    /// Letters that were put away or brought back.
    pub changed: i64,
    /// Letters that were selected and left as they were: held by a replay, settled, or dead again meanwhile.
    pub left: i64,
    /// Letters that the request is about, those beyond its limit included: they were not touched.
    pub matched: i64,
}

/// Put letters away
///
/// With a reason. They stay in the index and can be brought back until the topic forgets them. A letter that dies again
/// is open again.
#[utoipa::path(post, path = "/v1/dlt/archive", tag = "act", request_body = AwayRequest, responses((status = 200, description = "Counts", body = Away)))]
async fn archive(
    Held(api): Held<Api>,
    operator: Operator,
    http::Json(request): http::Json<AwayRequest>,
) -> Result<Json<Away>, ApiError> {
    change(&api, &operator, &request, State::Archived).await
}

/// Bring letters back
#[utoipa::path(post, path = "/v1/dlt/restore", tag = "act", request_body = AwayRequest, responses((status = 200, description = "Counts", body = Away)))]
async fn restore(
    Held(api): Held<Api>,
    operator: Operator,
    http::Json(request): http::Json<AwayRequest>,
) -> Result<Json<Away>, ApiError> {
    change(&api, &operator, &request, State::Open).await
}

async fn change(
    api: &Api,
    operator: &Operator,
    request: &AwayRequest,
    to: State,
) -> Result<Json<Away>, ApiError> {
    operator.require(Role::Act)?;
    check(request)?;
    let away = to == State::Archived;
    let from = if away { &State::UNSETTLED[..] } else { &[State::Archived] };
    let mut tx = letters::store::begin(&api.pool).await?;
    let selected = select(api, &mut tx, request, from).await?;
    let ids: Vec<Uuid> = selected.letters.iter().map(|letter| letter.0).collect();
    store::lock(&mut tx, &ids).await?;
    let changed = if away {
        store::archive(&mut tx, &selected.letters, &request.reason, api.settings.outcome_timeout).await?
    } else {
        store::restore(&mut tx, &ids).await?
    };
    let counts = Away {
        changed: changed.len() as i64,
        left: selected.taken - changed.len() as i64,
        matched: selected.matched,
    };
    let verb = if away { "archive" } else { "restore" };
    let entry = Entry::new(&operator.principal, verb, request)
        .count("changed", counts.changed)
        .count("left", counts.left)
        .count("matched", counts.matched);
    let audit = audit::add(&mut tx, &entry).await?;
    audit::add_results(&mut tx, audit, &changed, to.name(), Some(&request.reason)).await?;
    tx.commit().await?;
    Ok(Json(counts))
}

/// What an act is about.
struct Selected {
    /// With the dead letter that each stood for: one that dies again meanwhile is another one.
    letters: Vec<(Uuid, i64)>,
    /// Letters that were asked for, those that are not known included.
    taken: i64,
    matched: i64,
}

async fn select(
    api: &Api,
    tx: &mut PgConnection,
    request: &AwayRequest,
    from: &[State],
) -> Result<Selected, ApiError> {
    if let Some(ids) = &request.ids {
        let ids: BTreeSet<Uuid> = ids.iter().copied().collect();
        let taken = ids.len() as i64;
        let letters = store::versions(tx, &ids.into_iter().collect::<Vec<_>>()).await?;
        return Ok(Selected { letters, taken, matched: taken });
    }
    let selection = request.filter.select(tx, &api.names).await.map_err(|error| error.below("/filter"))?;
    let states = selection.states.clone();
    let states = states.unwrap_or_else(|| from.iter().map(|state| state.name().to_owned()).collect());
    let selection = Selection { states: Some(states), ..selection };
    let oldest = letters::store::oldest(tx, &selection, None, request.limit.unwrap_or(LIMIT)).await?;
    let taken = oldest.letters.len() as i64;
    Ok(Selected { letters: oldest.letters, taken, matched: oldest.matched })
}

fn check(request: &AwayRequest) -> Result<(), ApiError> {
    let wrong = |pointer: &str, detail: String| Err(ApiError::invalid(pointer, detail));
    if request.reason.trim().is_empty() {
        return wrong("/reason", "must say why: it is missing or blank".to_owned());
    }
    match &request.ids {
        Some(ids) if ids.len() > MAX_IDS => wrong("/ids", format!("must have at most {MAX_IDS} elements")),
        None if request.filter.is_bare() && !request.all => {
            wrong("/all", "must be true where neither filter nor ids are given".to_owned())
        }
        _ => Ok(()),
    }
}
