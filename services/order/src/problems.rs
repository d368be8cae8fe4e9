//! `GET /problems/{slug}`: a short page for every `code` of a problem, where its `type` points.

use std::fmt::Write;

use axum::http::StatusCode;
use axum::response::Html;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use waybill_service::http::{ApiError, Segment};

/// One kind of problem.
#[derive(Debug, Clone, Copy)]
pub struct Page {
    /// The `code`, last part of the `type`.
    pub slug: &'static str,
    /// HTTP status it comes with.
    pub status: u16,
    /// What happened.
    pub meaning: &'static str,
    /// What the client can do.
    pub remedy: &'static str,
}

const fn page(slug: &'static str, status: u16, meaning: &'static str, remedy: &'static str) -> Page {
    Page { slug, status, meaning, remedy }
}

const AGAIN: &str =
    "Send the same request again, with the same Idempotency-Key, after the seconds of Retry-After.";

/// Every problem that this service answers with.
pub const PAGES: &[Page] = &[
    page(
        "invalid-request",
        400,
        "The head is not HTTP/1.1, the body is not JSON, or the query has an unknown or a repeated parameter.",
        "Correct the request; the detail or `errors` names the place.",
    ),
    page(
        "validation-failed",
        400,
        "Fields of the request break its rules.",
        "Correct the fields that `errors` names by JSON pointer, of a query `/name`. An integer is a JSON number whose \
         value is one: 2, 2.0 and 2e0 are the same.",
    ),
    page(
        "invalid-cursor",
        400,
        "The cursor is damaged, or belongs to a list with other filters.",
        "Read the list again from its first page.",
    ),
    page(
        "idempotency-key-missing",
        400,
        "The header Idempotency-Key is missing.",
        "Send a new UUID for each new order, and the same one when the request is repeated.",
    ),
    page(
        "idempotency-key-invalid",
        400,
        "The header Idempotency-Key is not 1 to 255 visible ASCII characters, bare or in double quotes, given once.",
        "Send a UUID.",
    ),
    page(
        "unauthorized",
        401,
        "The bearer token is missing, expired, or not signed by a key that is trusted here.",
        "Get a new token.",
    ),
    page(
        "forbidden",
        403,
        "The token's scope does not allow this.",
        "Use a token with the scope that the endpoint needs.",
    ),
    page("not-found", 404, "There is nothing at this path.", "Check the path."),
    page(
        "order-not-found",
        404,
        "There is no order with this id that the caller may see.",
        "Check the id and the token.",
    ),
    page(
        "method-not-allowed",
        405,
        "The path does not take this method.",
        "Use a method of the header Allow.",
    ),
    page(
        "not-acceptable",
        406,
        "The header Accept does not take application/json.",
        "Send Accept: application/json, or none.",
    ),
    page(
        "request-timeout",
        408,
        "The body was not sent in time.",
        "Send the same request again, with the same Idempotency-Key.",
    ),
    page("idempotency-in-progress", 409, "A request with this Idempotency-Key has not ended yet.", AGAIN),
    page("payload-too-large", 413, "The body is larger than 64 KiB.", "Send less."),
    page(
        "unsupported-media-type",
        415,
        "The body is not declared as application/json, or not in UTF-8.",
        "Send Content-Type: application/json.",
    ),
    page(
        "unsupported-content-encoding",
        415,
        "The body is compressed.",
        "Send it as it is, without Content-Encoding.",
    ),
    page(
        "idempotency-key-reused",
        422,
        "This Idempotency-Key was used for another request before.",
        "Send a new key with a new request. To repeat a request, send it unchanged.",
    ),
    page(
        "amount-mismatch",
        422,
        "The total is not the expectedAmount: a price has changed.",
        "Show the customer the new total, and order again.",
    ),
    page(
        "total-too-large",
        422,
        "The total is larger than 9007199254740991, which not every JSON reader holds exactly.",
        "Order less at once.",
    ),
    page(
        "rate-limited",
        429,
        "One principal has sent too many requests.",
        "Send less; wait for the seconds of Retry-After.",
    ),
    page(
        "head-too-large",
        431,
        "Request line and headers are larger than 16 KiB, or more than 100 headers.",
        "Send fewer or shorter headers and parameters.",
    ),
    page(
        "internal-error",
        500,
        "Something failed on our side.",
        "Send the same request again, with the same Idempotency-Key. If it stays, report the requestId.",
    ),
    page("overloaded", 503, "There are too many requests at once.", AGAIN),
    page("database-unavailable", 503, "The database does not answer.", AGAIN),
];

/// Needs no token: the pages explain how to get one right.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new().routes(routes!(index)).routes(routes!(show))
}

/// All problems
#[utoipa::path(
    get,
    path = "/problems",
    tag = "problems",
    responses((status = 200, description = "A page with a link to each", body = String, content_type = "text/html")),
)]
async fn index() -> Html<String> {
    let mut list = String::from("<ul>\n");
    for Page { slug, status, meaning, .. } in PAGES {
        let _ = writeln!(
            list,
            "<li><a href=\"/problems/{slug}\"><code>{slug}</code></a> ({status}): {meaning}</li>"
        );
    }
    list.push_str("</ul>");
    html("Problems", &list)
}

/// One problem
///
/// What the `code` of a problem means and what a client can do; where its `type` points.
#[utoipa::path(
    get,
    path = "/problems/{slug}",
    tag = "problems",
    params(("slug" = String, Path, description = "`code` of the problem", example = "validation-failed")),
    responses((status = 200, description = "A page", body = String, content_type = "text/html")),
)]
async fn show(Segment(slug): Segment<String>) -> Result<Html<String>, ApiError> {
    let page = PAGES.iter().find(|page| page.slug == slug);
    let Page { slug, status, meaning, remedy } = page.ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, "not-found", "there is no problem of this name")
    })?;
    Ok(html(slug, &format!("<p>HTTP status {status}</p>\n<p>{meaning}</p>\n<p>{remedy}</p>")))
}

fn html(title: &str, content: &str) -> Html<String> {
    Html(format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{title}</title>\n<h1>{title}</h1>\n{content}\n</html>\n"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{idempotency, orders};

    #[test]
    fn every_error_of_ours_has_a_page_with_its_status() {
        // The frame's own codes are met by the integration tests, which look for each page too.
        let key = |error: idempotency::Error| ApiError::from(orders::Error::Key(error));
        let problems = [
            orders::Error::Invalid(vec![]).into(),
            orders::Error::NotFound.into(),
            orders::Error::InvalidCursor.into(),
            orders::Error::AmountMismatch { expected: 1, total: 2 }.into(),
            orders::Error::TotalTooLarge.into(),
            orders::Error::Database(sqlx::Error::RowNotFound).into(),
            key(idempotency::Error::Missing),
            key(idempotency::Error::Invalid("")),
            key(idempotency::Error::Reused),
            key(idempotency::Error::InProgress),
            key(idempotency::Error::Database(sqlx::Error::PoolTimedOut)),
            ApiError::from(sqlx::Error::PoolClosed),
        ];
        for problem in problems {
            let page = PAGES.iter().find(|page| page.slug == problem.code());
            assert_eq!(page.map(|page| page.status), Some(problem.status().as_u16()), "{}", problem.code());
        }
    }

    #[test]
    fn slugs_are_unique() {
        let slugs: std::collections::HashSet<_> = PAGES.iter().map(|page| page.slug).collect();
        assert_eq!(slugs.len(), PAGES.len());
    }
}
