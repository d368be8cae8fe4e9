//! What serde says of a request, in words for the client, and the place that it is about.

use axum::http::StatusCode;
use serde_path_to_error::{Path, Segment};

use super::error::ApiError;

/// 400 `validation-failed` of the place and what serde says of it.
pub(super) fn validation(path: &Path, message: &str) -> ApiError {
    let (member, detail) = told(message);
    let member = member.map(|member| format!("/{}", escaped(member))).unwrap_or_default();
    ApiError::invalid(format!("{}{member}", pointer(path)), detail)
}

/// The member of the place that it is about, if it is one, and the text. serde says of an object what its member lacks.
fn told(message: &str) -> (Option<&str>, String) {
    let member = |start| message.strip_prefix(start)?.split('`').next();
    if let Some(name) = member("missing field `") {
        return (Some(name), "is missing".to_owned());
    }
    if let Some(name) = member("duplicate field `") {
        return (Some(name), "is given more than once".to_owned());
    }
    if message.starts_with("unknown field `") {
        return (None, format!("is not known here: {message}"));
    }
    if message.starts_with("UUID parsing failed") {
        return (None, "must be a UUID".to_owned());
    }
    // serde names the type that the program has for it.
    match message.split_once(", expected struct ") {
        Some((found, _)) => (None, format!("{found}, expected a JSON object")),
        None => (None, message.to_owned()),
    }
}

/// A JSON pointer (RFC 6901) of a serde path.
pub(super) fn pointer(path: &Path) -> String {
    path.iter().fold(String::new(), |pointer, segment| match segment {
        Segment::Seq { index } => format!("{pointer}/{index}"),
        Segment::Map { key } => format!("{pointer}/{}", escaped(key)),
        Segment::Enum { .. } | Segment::Unknown => pointer,
    })
}

/// A name in a pointer.
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

impl ApiError {
    /// 400 `validation-failed` of one field: its JSON pointer, of a query `/name`, and what it must be.
    pub fn invalid(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "validation-failed", "the request is not valid")
            .pointer(pointer, detail)
    }
}
