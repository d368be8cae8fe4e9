//! JSON bodies whose faults name the field.

use std::fmt;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{FromRequest, Request};
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use serde::de::{self, DeserializeOwned, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::body::BodyTimeout;
use super::error::ApiError;
use super::fault::validation;
use super::frame::BodyLimit;
use super::media;
use super::query::NUL;

/// A request body of type `T`. Give `T` `#[serde(deny_unknown_fields)]`: an unknown field is refused by name.
///
/// Refusals: 415 for another content type, another charset than UTF-8, or a compressed body; 413 for a body over the
/// limit, 408 for one that is not sent in time, 400 `invalid-request` for what is not JSON, 400 `validation-failed` with
/// a JSON pointer for what does not fit `T`, and for a text with U+0000, which PostgreSQL's text cannot hold.
#[derive(Debug, Clone, Copy)]
pub struct Json<T>(pub T);

impl<T, S> FromRequest<S> for Json<T>
where
    T: DeserializeOwned,
    S: Send + Sync,
{
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, Self::Rejection> {
        media::is_json(request.headers())?;
        media::is_plain(request.headers())?;
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

/// What a value is told in whose place only some texts may be.
const NO_NAME: &str = "must be one of the texts that may be here, and no other value";

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    let invalid = |detail| ApiError::new(StatusCode::BAD_REQUEST, "invalid-request", detail);
    // serde reads a struct from a list too, by position.
    if body.trim_ascii_start().starts_with(b"[") {
        return Err(ApiError::invalid("", "must be a JSON object, and no list"));
    }
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let message = error.inner().to_string();
        // Where in the text is worth saying only where no pointer can.
        let said = message.rsplit_once(" at line ").map_or(message.as_str(), |(said, _)| said);
        match unreadable(said) {
            Some(what) => validation(error.path(), what),
            None if error.inner().is_data() => validation(error.path(), said),
            // serde_json says so where a name is asked for, as of an enum, and the value is no text.
            None if serde_json::from_slice::<IgnoredAny>(body).is_ok() => validation(error.path(), NO_NAME),
            None => invalid(format!("the body is not JSON: {message}")),
        }
    })?;
    reader.end().map_err(|error| invalid(format!("the body is not one JSON value: {error}")))?;
    // Nearly no body has it, and those that have are read once more to say where.
    if memmem(body, br"\u0000") {
        let mut reader = serde_json::Deserializer::from_slice(body);
        serde_path_to_error::deserialize::<_, WithoutNul>(&mut reader)
            .map_err(|error| validation(error.path(), NUL))?;
    }
    Ok(value)
}

/// What serde_json calls a fault of the syntax, but is one of a value: JSON's grammar takes it.
fn unreadable(said: &str) -> Option<&'static str> {
    match said {
        "number out of range" => Some("must be a number that a double can hold"),
        "lone leading surrogate in hex escape" | "unexpected end of hex escape" => {
            Some("must be Unicode text: an escape is half a surrogate pair")
        }
        "invalid unicode code point" => Some("must be Unicode text in UTF-8"),
        _ => None,
    }
}

fn memmem(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// Any JSON in which no text has U+0000.
struct WithoutNul;

impl<'de> Deserialize<'de> for WithoutNul {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Self)
    }
}

impl<'de> Visitor<'de> for WithoutNul {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Self, E> {
        if text.contains('\0') { Err(E::custom(NUL)) } else { Ok(self) }
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while list.next_element::<Self>()?.is_some() {}
        Ok(self)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<String, Self>()?.is_some() {}
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::super::field;
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
        #[serde(deserialize_with = "field::integer::<1, 1000, _, _>")]
        quantity: i32,
        #[allow(dead_code, reason = "only its deserialisation is tested")]
        sku: Option<String>,
        #[allow(dead_code, reason = "only its deserialisation is tested")]
        kind: Option<Kind>,
    }

    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "lowercase")]
    enum Kind {
        Plain,
    }

    #[test]
    fn a_fault_names_its_field() {
        for (body, pointer, names) in [
            (r#"{"items":[{"quantity":"x"}]}"#, "/items/0/quantity", "must be an integer from 1 to 1000"),
            (r#"{"items":[{"quantity":1e400}]}"#, "/items/0/quantity", "must be an integer from 1 to 1000"),
            (r#"{"items":[{"quantity":1,"extra":1}]}"#, "/items/0/extra", "not known"),
            (r#"{"items":[{"quantity":1,"quantity":1}]}"#, "/items/0/quantity", "more than once"),
            (r#"{"items":[{}]}"#, "/items/0/quantity", "is missing"),
            (r#"{"items":[{"quantity":1,"sku":"a\u0000"}]}"#, "/items/0/sku", "U+0000"),
            (r#"{"items":[{"quantity":1,"sku":"\ud800"}]}"#, "/items/0/sku", "surrogate"),
            (r#"{"items":[{"quantity":1,"sku":"\ud800\ud800"}]}"#, "/items/0/sku", "surrogate"),
            (r#"{"items":[{"quantity":1,"sku":"\udc00x"}]}"#, "/items/0/sku", "surrogate"),
            (r#"{"items":[{"quantity":1,"sku":1e400}]}"#, "/items/0/sku", "double"),
            (r#"{"items":[{"quantity":1,"sku":1}]}"#, "/items/0/sku", "a string"),
            ("null", "", "a JSON object"),
            (r#"[[{"quantity":1}]]"#, "", "a JSON object"),
        ] {
            let error = parse::<Body>(body.as_bytes()).expect_err(body);
            let told: serde_json::Value = serde_json::from_slice(&error.body(None)).expect("JSON");
            let found = &told["errors"][0];
            assert_eq!(
                (error.code(), &found["pointer"]),
                ("validation-failed", &pointer.into()),
                "{body}: {told}"
            );
            let detail = found["detail"].as_str().unwrap_or_default();
            assert!(
                detail.contains(names) && !detail.contains("i32") && !detail.contains("line 1"),
                "{body}: {told}"
            );
        }
        let invalid =
            parse::<Body>(b"{\"items\":[{\"quantity\":1,\"sku\":\"\xff\"}]}").expect_err("no UTF-8");
        assert!(String::from_utf8_lossy(&invalid.body(None)).contains("/items/0/sku"));
        assert!(parse::<Body>(br#"{"items":[{"quantity":1.0,"sku":"\\u0000"}]}"#).is_ok());
    }

    #[test]
    fn what_is_not_json_is_told_by_its_place() {
        for (body, names) in [
            (r#"{"items":[]} x"#, "one JSON value"),
            ("{", "not JSON"),
            ("", "not JSON"),
            (r#"{"items":[{"quantity":01}]}"#, "line 1"),
        ] {
            let error = parse::<Body>(body.as_bytes()).expect_err(body);
            let text = String::from_utf8(error.body(None)).expect("text");
            assert!(error.code() == "invalid-request" && text.contains(names), "{body}: {text}");
        }
    }
}
