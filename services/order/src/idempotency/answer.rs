//! Answers that are kept, and what they are compared by.

use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::{Error, REPLAYED, TRUE};

/// SHA-256 of a typed request: spacing, the order of members and the headers do not count, every value does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Of a request, by its serialized form: members in declared order, numbers and strings in one way only.
    ///
    /// # Errors
    /// [`Error::Encode`], for types that have no JSON form.
    pub fn of<T: Serialize>(request: &T) -> Result<Self, Error> {
        let canonical = serde_json::to_vec(request).map_err(Error::Encode)?;
        Ok(Self(Sha256::digest(&canonical).into()))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// A final answer: what is sent now and on every repetition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// 2xx.
    pub status: i16,
    /// `Location`.
    pub location: Option<String>,
    /// JSON, byte for byte.
    pub body: Bytes,
}

impl Answer {
    /// 201 with the thing that was made.
    ///
    /// # Errors
    /// [`Error::Encode`].
    pub fn created<T: Serialize>(location: String, made: &T) -> Result<Self, Error> {
        let body = serde_json::to_vec(made).map_err(Error::Encode)?.into();
        Ok(Self { status: 201, location: Some(location), body })
    }
}

/// An answer found under a key.
#[derive(Debug)]
pub struct Stored {
    pub(crate) fingerprint: Vec<u8>,
    pub(crate) answer: Answer,
}

impl Stored {
    /// The answer, if it was given to this very request.
    ///
    /// # Errors
    /// [`Error::Reused`].
    pub fn replay(self, fingerprint: &Fingerprint) -> Result<Outcome, Error> {
        if self.fingerprint == fingerprint.0 {
            Ok(Outcome::Replayed(self.answer))
        } else {
            Err(Error::Reused)
        }
    }
}

/// How a request under a key ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The effect was made by this request.
    Done(Answer),
    /// It had been made before.
    Replayed(Answer),
}

impl IntoResponse for Outcome {
    fn into_response(self) -> Response {
        let (answer, replayed) = match self {
            Self::Done(answer) => (answer, false),
            Self::Replayed(answer) => (answer, true),
        };
        let mut response = Response::new(Body::from(answer.body));
        let status = u16::try_from(answer.status).ok().and_then(|status| StatusCode::from_u16(status).ok());
        *response.status_mut() = status.unwrap_or(StatusCode::OK);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(location) = answer.location.and_then(|location| HeaderValue::try_from(location).ok()) {
            headers.insert(LOCATION, location);
        }
        if replayed {
            headers.insert(REPLAYED, TRUE);
        }
        response
    }
}
