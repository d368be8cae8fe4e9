//! What is said of a body before it is read.

use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};

use super::error::ApiError;

/// JSON, and in UTF-8: its only encoding between systems (RFC 8259, §8.1), so a parameter may say it or be absent.
pub(super) fn is_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let mut given = headers.get_all(CONTENT_TYPE).iter();
    let (first, second) = (given.next(), given.next());
    let content_type = first.filter(|_| second.is_none()).and_then(|value| value.to_str().ok());
    let mut parts = content_type.unwrap_or_default().split(';').map(str::trim);
    let detail = if !parts.next().unwrap_or_default().eq_ignore_ascii_case("application/json") {
        "the body must be sent with Content-Type: application/json, given once"
    } else if !parts.filter_map(charset).all(|charset| charset.eq_ignore_ascii_case("utf-8")) {
        "the body must be sent in UTF-8: charset of Content-Type must be utf-8 or absent"
    } else {
        return Ok(());
    };
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-media-type", detail))
}

fn charset(parameter: &str) -> Option<&str> {
    let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
    let value = value.trim();
    let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
    name.trim().eq_ignore_ascii_case("charset").then_some(bare)
}

/// Not compressed.
pub(super) fn is_plain(headers: &HeaderMap) -> Result<(), ApiError> {
    let codings = headers.get_all(CONTENT_ENCODING).iter().map(|value| value.to_str().unwrap_or("?"));
    let mut codings = codings.flat_map(|value| value.split(',')).map(str::trim);
    if codings.all(|coding| coding.is_empty() || coding.eq_ignore_ascii_case("identity")) {
        return Ok(());
    }
    let detail = "the body must be sent as it is: Content-Encoding must be identity or absent";
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported-content-encoding", detail)
        .header(ACCEPT_ENCODING, HeaderValue::from_static("identity")))
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    #[test]
    fn only_plain_json_in_utf_8_is_read() {
        let judged = |name: HeaderName, values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(&name, HeaderValue::from_str(value).expect("value"));
            }
            headers.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/json"));
            is_json(&headers).and_then(|()| is_plain(&headers)).map_err(|error| error.code())
        };
        for fine in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
            "application/json; profile=x; CHARSET = Utf-8",
        ] {
            assert_eq!(judged(CONTENT_TYPE, &[fine]), Ok(()), "{fine}");
        }
        for wrong in [
            &["application/json; charset=euc-kr"][..],
            &["application/json; charset=utf-16"],
            &["application/json; charset="],
            &["application/json; charset=utf-8; charset=latin1"],
            &["application/json; charset=\"utf-8"],
            &["application/json", "application/json"],
            &["text/plain; charset=utf-8"],
            &[""],
        ] {
            assert_eq!(judged(CONTENT_TYPE, wrong), Err("unsupported-media-type"), "{wrong:?}");
        }
        for fine in [&["identity"][..], &["Identity", "identity"], &[""]] {
            assert_eq!(judged(CONTENT_ENCODING, fine), Ok(()), "{fine:?}");
        }
        for wrong in [&["gzip"][..], &["identity, br"], &["identity", "deflate"], &["x"]] {
            assert_eq!(judged(CONTENT_ENCODING, wrong), Err("unsupported-content-encoding"), "{wrong:?}");
        }
    }
}
