//! Routes of the catalogue.

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Deserialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use waybill_service::auth::Principal;
use waybill_service::http::{ApiError, Params};

use super::{Product, store};
use crate::app::AppState;
use crate::orders::{Error, is_sku};
use crate::paging::{self, Paged};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListQuery {
    limit: Option<String>,
    cursor: Option<String>,
}

/// `/v1/products`.
pub(crate) fn router() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list_products))
}

/// List what can be ordered
///
/// In byte order of the stock keeping unit.
#[utoipa::path(
    get,
    path = "/v1/products",
    tag = "products",
    params(
        ("limit" = Option<i64>, Query, description = "Elements of a page, 20 if absent", minimum = 1, maximum = 100),
        ("cursor" = Option<String>, Query, description = "`nextCursor` of the page before", max_length = 86),
    ),
    responses((
        status = 200,
        description = "One page",
        body = Paged<Product>,
        headers(("Link" = Option<String>, description = "The next page, if there is one")),
    )),
)]
async fn list_products(
    State(state): State<AppState>,
    _: Principal,
    Params(query): Params<ListQuery>,
) -> Result<Response, ApiError> {
    let limit = paging::limit(query.limit.as_deref()).map_err(|violation| Error::Invalid(vec![violation]))?;
    let after = query.cursor.as_deref().map(position).transpose()?.unwrap_or_default();
    let mut connection = state.orders.gate.acquire().await?;
    let rows = store::list(&mut connection, &after, limit + 1).await?;
    drop(connection);
    let page = Paged::new(rows, limit, "/v1/products", "", |last| URL_SAFE_NO_PAD.encode(&last.sku));
    Ok(page.into_response())
}

/// The last product of the page before.
fn position(cursor: &str) -> Result<String, Error> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).ok();
    let sku = bytes.and_then(|bytes| String::from_utf8(bytes).ok());
    sku.filter(|sku| is_sku(sku)).ok_or(Error::InvalidCursor)
}
