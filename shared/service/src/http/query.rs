//! Queries and paths as typed values whose faults are problems that name the parameter.

use std::collections::BTreeSet;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use percent_encoding::percent_decode_str;
use serde::Deserializer;
use serde::de::value::{Error, MapDeserializer, StringDeserializer};
use serde::de::{DeserializeOwned, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use super::error::ApiError;
use super::fault::{escaped, validation};
use super::field::number;

/// A query of type `T`. Give `T` `#[serde(deny_unknown_fields)]`: an unknown parameter is refused by name.
///
/// Refusals, each with a pointer `/name`: 400 `invalid-request` for a parameter that is unknown or repeated, 400
/// `validation-failed` for what is no UTF-8, holds U+0000, which PostgreSQL's text cannot, or does not fit `T`.
#[derive(Debug, Clone, Copy)]
pub struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        params(parts.uri.query().unwrap_or_default()).map(Self)
    }
}

/// A query, as it is in the URL.
///
/// # Errors
/// As of [`Params`].
pub fn params<T: DeserializeOwned>(query: &str) -> Result<T, ApiError> {
    let (mut pairs, mut names) = (Vec::new(), BTreeSet::new());
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let name = decoded(name).ok_or_else(|| refused("", "has a name that is not UTF-8"))?;
        if !names.insert(name.clone()) {
            return Err(refused(&name, "is given more than once"));
        }
        let value = decoded(value).ok_or_else(|| wrong(&name, "must be UTF-8, percent-encoded"))?;
        if value.contains('\0') {
            return Err(wrong(&name, NUL));
        }
        pairs.push((name, Value(value)));
    }
    let pairs = MapDeserializer::<_, Error>::new(pairs.into_iter());
    serde_path_to_error::deserialize(pairs).map_err(|error| {
        let message = error.inner().to_string();
        let name = error.path().to_string();
        if message.starts_with("unknown field") {
            return refused(&name, &format!("is not known here: {message}"));
        }
        validation(error.path(), &message)
    })
}

/// What a text with U+0000 is told.
pub(super) const NUL: &str = "must not hold the character U+0000";

fn refused(name: &str, detail: &str) -> ApiError {
    let text = "the query has a parameter that is unknown, repeated or unreadable";
    ApiError::new(StatusCode::BAD_REQUEST, "invalid-request", text)
        .pointer(format!("/{}", escaped(name)), detail)
}

fn wrong(name: &str, detail: &str) -> ApiError {
    ApiError::invalid(format!("/{}", escaped(name)), detail)
}

/// `None`: not UTF-8.
fn decoded(text: &str) -> Option<String> {
    let text = text.replace('+', " ");
    percent_decode_str(&text).decode_utf8().ok().map(|text| text.into_owned())
}

/// One value: a text, unless a number or a boolean is asked for.
struct Value(String);

impl IntoDeserializer<'_, Error> for Value {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Value {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.0)
    }

    fn deserialize_i64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match number(&self.0) {
            Some(number) => number.deserialize_i64(visitor).map_err(serde::de::Error::custom),
            None => visitor.visit_string(self.0),
        }
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0.as_str() {
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            _ => Err(serde::de::Error::custom("must be true or false")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        StringDeserializer::<Error>::new(self.0).deserialize_enum(name, variants, visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    forward_to_deserialize_any! {
        i8 i16 i32 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct
        map struct identifier ignored_any
    }
}

/// A part of the path, or several; what cannot be one is 404 `not-found`.
#[derive(Debug, Clone, Copy)]
pub struct Segment<T>(pub T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Segment<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        let path: Result<Path<T>, PathRejection> = Path::from_request_parts(parts, state).await;
        let none = |_| ApiError::new(StatusCode::NOT_FOUND, "not-found", "there is nothing at this path");
        path.map(|Path(part)| Self(part)).map_err(none)
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::super::field;
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Query {
        name: Option<String>,
        id: Option<uuid::Uuid>,
        #[serde(default)]
        all: bool,
        #[serde(default, deserialize_with = "field::optional_integer::<1, 100, _, _>")]
        limit: Option<u32>,
    }

    #[test]
    fn a_query_is_read_once_decoded() {
        let read = params::<Query>("&name=a%26b+c%2B&&all=true&limit=2e0").expect("reads");
        let expected = Query { name: Some("a&b c+".to_owned()), id: None, all: true, limit: Some(2) };
        assert_eq!(read, expected);
        assert_eq!(params::<Query>("name").expect("reads").name.as_deref(), Some(""));
    }

    #[test]
    fn a_fault_names_its_parameter() {
        for (query, code, pointer, text) in [
            ("name=a%00b", "validation-failed", "/name", "U+0000"),
            ("name=%FF", "validation-failed", "/name", "UTF-8"),
            ("name=%ED%A0%80", "validation-failed", "/name", "UTF-8"),
            ("id=x", "validation-failed", "/id", "must be a UUID"),
            ("all=yes", "validation-failed", "/all", "must be true or false"),
            ("limit=0", "validation-failed", "/limit", "must be an integer from 1 to 100"),
            ("limit=1.5", "validation-failed", "/limit", "must be an integer from 1 to 100"),
            ("limit=%201", "validation-failed", "/limit", "must be an integer from 1 to 100"),
            ("limit=", "validation-failed", "/limit", "must be an integer from 1 to 100"),
            ("limit=1e400", "validation-failed", "/limit", "must be an integer from 1 to 100"),
            ("limit=1&limit=1", "invalid-request", "/limit", "more than once"),
            ("li%6Dit=1&limit=1", "invalid-request", "/limit", "more than once"),
            ("a~/b=1", "invalid-request", "/a~0~1b", "not known"),
            ("%FF=1", "invalid-request", "/", "UTF-8"),
            ("=1", "invalid-request", "/", "not known"),
        ] {
            let error = params::<Query>(query).expect_err(query);
            let body: serde_json::Value = serde_json::from_slice(&error.body(None)).expect("JSON");
            let found = &body["errors"][0];
            assert_eq!((error.code(), &found["pointer"]), (code, &pointer.into()), "{query}: {body}");
            assert!(found["detail"].as_str().is_some_and(|detail| detail.contains(text)), "{query}: {body}");
        }
    }
}
