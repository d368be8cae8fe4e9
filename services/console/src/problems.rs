//! `GET /problems/{slug}`: a short page for every `code` of a problem, where its `type` points.

use axum::http::StatusCode;
use axum::response::Html;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use waybill_service::http::{ApiError, Segment};

/// One kind of problem.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Page {
    /// The `code`, last part of the `type`.
    pub(crate) slug: &'static str,
    /// HTTP status it comes with.
    pub(crate) status: u16,
    /// What happened, and what the client can do.
    pub(crate) meaning: &'static str,
}

const fn page(slug: &'static str, status: u16, meaning: &'static str) -> Page {
    Page { slug, status, meaning }
}

/// Every problem that the console answers with.
pub(crate) const PAGES: &[Page] = &[
    page(
        "invalid-request",
        400,
        "The head is not HTTP/1.1, the body is not JSON, or the query has an unknown or a repeated parameter.",
    ),
    page(
        "validation-failed",
        400,
        "Fields of the request break its rules; `errors` names them by JSON pointer, of a query `/name`. An integer is a JSON \
         number whose value is one: 2, 2.0 and 2e0 are the same.",
    ),
    page("invalid-cursor", 400, "The cursor is damaged. Read the list again from its first page."),
    page(
        "unauthorized",
        401,
        "The bearer token is missing, expired, or not signed by a key that is trusted here.",
    ),
    page("forbidden", 403, "The token is a customer's, or lacks a role: view, payload or act."),
    page("not-found", 404, "There is nothing at this path."),
    page("letter-not-found", 404, "There is no such dead letter, or its topic has forgotten it."),
    page(
        "plan-not-found",
        404,
        "There is no such plan. Plans that were not carried out are kept for seven days.",
    ),
    page("replay-not-found", 404, "There is no such replay."),
    page("method-not-allowed", 405, "The path does not take this method."),
    page("request-timeout", 408, "The body was not sent in time."),
    page("replay-ended", 409, "The replay has ended: there is nothing to cancel."),
    page("payload-too-large", 413, "The body is larger than 64 KiB."),
    page("unsupported-media-type", 415, "The body is not declared as application/json, or not in UTF-8."),
    page("unsupported-content-encoding", 415, "The body is compressed. Send it without Content-Encoding."),
    page(
        "unknown-name",
        422,
        "No dead-letter topic, group or service has this name. Names are never guessed.",
    ),
    page(
        "acknowledgement-needed",
        422,
        "A group declares that replays need reconciling with the outside first. Do it, and say so.",
    ),
    page(
        "head-too-large",
        431,
        "Request line and headers are larger than 16 KiB, or more than 100 headers. Send fewer or shorter ones.",
    ),
    page("internal-error", 500, "Something failed on our side; the request id finds it in the logs."),
    page("service-unreachable", 502, "A consuming service does not answer."),
    page("service-refused", 502, "A consuming service refuses; the detail says why."),
    page("broker-unavailable", 502, "Kafka does not answer."),
    page("overloaded", 503, "There are too many requests at once. Wait for the seconds of Retry-After."),
    page("database-unavailable", 503, "The database does not answer. Wait for the seconds of Retry-After."),
];

/// Needs no token.
pub(crate) fn router<S: Clone + Send + Sync + 'static>() -> OpenApiRouter<S> {
    OpenApiRouter::new().routes(routes!(show))
}

/// One problem
///
/// What the `code` of a problem means; where its `type` points.
#[utoipa::path(
    get,
    path = "/problems/{slug}",
    tag = "problems",
    params(("slug" = String, Path, description = "`code` of the problem", example = "validation-failed")),
    responses((status = 200, description = "A page", body = String, content_type = "text/html")),
)]
async fn show(Segment(slug): Segment<String>) -> Result<Html<String>, ApiError> {
    let page = PAGES.iter().find(|page| page.slug == slug);
    let Page { slug, status, meaning } = page.ok_or_else(|| {
        ApiError::new(StatusCode::NOT_FOUND, "not-found", "there is no problem of this name")
    })?;
    Ok(Html(format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>{slug}</title>\n<h1>{slug}</h1>\n\
         <p>HTTP status {status}</p>\n<p>{meaning}</p>\n</html>\n"
    )))
}
