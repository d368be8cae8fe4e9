//! JSON bodies whose faults name the field.

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONNECTION, CONTENT_TYPE};
use axum::http::{HeaderValue, StatusCode};
use serde::de::DeserializeOwned;

use super::body::BodyTimeout;
use super::error::ApiError;
use super::frame::BodyLimit;

/// A request body of type `T`. Give `T` `#[serde(deny_unknown_fields)]`: an unknown field is refused by name.
///
/// Refusals: 415 for another content type, 413 for a body over the limit, 408 for one that is not sent in time, 400 `invalid-request` for what is not
/// JSON, 400 `validation-failed` with a JSON pointer for what does not fit `T`.
#[derive(Debug, Clone, Copy)]
pub struct Json<T>(pub T);

impl<T, S> FromRequest<S> for Json<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        let content_type =
            request.headers().get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
        let media_type = content_type.split(';').next().unwrap_or_default().trim();
        if !media_type.eq_ignore_ascii_case("application/json") {
            let detail = "the body must be sent with Content-Type: application/json";
            return Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", detail));
        }
        let limit = request.extensions().get().map_or(super::BODY_LIMIT, |BodyLimit(limit)| *limit);
        let body =
            Bytes::from_request(request, state).await.map_err(|rejection| match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => too_large(limit),
                _ if is_timeout(&rejection) => too_slow(),
                _ => ApiError::new(StatusCode::BAD_REQUEST, "invalid-request", "the body cannot be read"),
            })?;
        parse(&body).map(Self)
    }
}

pub(crate) fn too_large(limit: usize) -> ApiError {
    let detail = format!("the body must not be larger than {limit} bytes");
    // What is left of the body would be taken for the next request.
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "payload-too-large", detail)
        .header(CONNECTION, HeaderValue::from_static("close"))
}

fn too_slow() -> ApiError {
    let detail = "the body was not sent in time; nothing was done";
    ApiError::new(StatusCode::REQUEST_TIMEOUT, "request-timeout", detail)
        .header(CONNECTION, HeaderValue::from_static("close"))
}

fn is_timeout(rejection: &BytesRejection) -> bool {
    let mut cause: Option<&dyn std::error::Error> = Some(rejection);
    while let Some(error) = cause {
        if error.is::<BodyTimeout>() {
            return true;
        }
        cause = error.source();
    }
    false
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let inner = error.inner();
        if inner.is_data() {
            let detail = format!("the body does not fit: {inner}");
            return ApiError::new(StatusCode::BAD_REQUEST, "validation-failed", "the request is not valid")
                .pointer(pointer(error.path()), detail);
        }
        ApiError::new(StatusCode::BAD_REQUEST, "invalid-request", format!("the body is not JSON: {inner}"))
    })?;
    reader.end().map_err(|e| {
        ApiError::new(
            StatusCode::BAD_REQUEST,
            "invalid-request",
            format!("the body is not one JSON value: {e}"),
        )
    })?;
    Ok(value)
}

/// A JSON pointer of a serde path.
fn pointer(path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    path.iter().fold(String::new(), |pointer, segment| match segment {
        Segment::Seq { index } => format!("{pointer}/{index}"),
        Segment::Map { key } => format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1")),
        Segment::Enum { .. } | Segment::Unknown => pointer,
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        #[allow(dead_code, reason = "only its deserialisation is tested")]
        items: Vec<Item>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Item {
        #[allow(dead_code, reason = "only its deserialisation is tested")]
        quantity: i32,
    }

    #[test]
    fn a_fault_names_its_field() {
        for (body, code, names) in [
            (r#"{"items":[{"quantity":"x"}]}"#, "validation-failed", "/items/0/quantity"),
            (r#"{"items":[{"quantity":1,"extra":1}]}"#, "validation-failed", "extra"),
            (r#"{"items":[{}]}"#, "validation-failed", "quantity"),
            (r#"{"items":[]} x"#, "invalid-request", "one JSON value"),
            ("{", "invalid-request", "not JSON"),
            ("", "invalid-request", "not JSON"),
            ("null", "validation-failed", "Body"),
        ] {
            let error = parse::<Body>(body.as_bytes()).expect_err(body);
            let text = String::from_utf8(error.body(None)).expect("text");
            assert!(error.code() == code && text.contains(names), "{body}: {text}");
        }
        assert!(parse::<Body>(br#"{"items":[{"quantity":1}]}"#).is_ok());
    }
}
