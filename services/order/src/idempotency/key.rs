//! The key as the client sends it.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use waybill_service::http::ApiError;

use super::{Error, HEADER};

/// Longest key, in bytes.
const MAX_BYTES: usize = 255;

/// A key: 1 to 255 visible ASCII characters. The bare form (`abc`) and the quoted form of the IETF draft
/// (`"abc"`, a structured-field string) are the same key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// The key without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn parse(value: &[u8]) -> Result<Self, Error> {
        let text = match value.strip_prefix(b"\"") {
            None => value.to_vec(),
            Some(rest) => unquote(rest).ok_or(Error::Invalid("the quoted form has no proper end"))?,
        };
        if text.is_empty() || text.len() > MAX_BYTES {
            return Err(Error::Invalid("it must have 1 to 255 characters"));
        }
        if !text.iter().all(u8::is_ascii_graphic) {
            return Err(Error::Invalid("only visible ASCII characters are legal"));
        }
        String::from_utf8(text)
            .map(Self)
            .map_err(|_| Error::Invalid("only visible ASCII characters are legal"))
    }
}

/// The text of a structured-field string (RFC 9651) after its opening quote; `None` when it is not one, or is
/// followed by anything.
fn unquote(rest: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(rest.len());
    let mut bytes = rest.iter().copied();
    loop {
        match bytes.next()? {
            b'"' => return bytes.next().is_none().then_some(text),
            b'\\' => text.push(bytes.next().filter(|b| matches!(b, b'"' | b'\\'))?),
            byte => text.push(byte),
        }
    }
}

impl<S: Sync> FromRequestParts<S> for Key {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let mut values = parts.headers.get_all(HEADER).iter();
        let value = values.next().ok_or(Error::Missing)?;
        if values.next().is_some() {
            return Err(Error::Invalid("it is given more than once").into());
        }
        Ok(Self::parse(value.as_bytes())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(value: &str) -> Option<String> {
        Key::parse(value.as_bytes()).ok().map(|key| key.0)
    }

    #[test]
    fn bare_and_quoted_are_the_same_key() {
        for (value, text) in [
            ("abc", "abc"),
            ("\"abc\"", "abc"),
            (r#""a\"b\\c""#, r#"a"b\c"#),
            (r#"a"b\c"#, r#"a"b\c"#),
            ("!~", "!~"),
            ("\"\\\"\"", "\""),
        ] {
            assert_eq!(key(value).as_deref(), Some(text), "{value}");
        }
        assert!(key(&"k".repeat(255)).is_some());
        assert!(key(&format!("\"{}\"", "k".repeat(255))).is_some());
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for value in
            ["", "\"\"", "\"", "\"abc", "\"abc\";p=1", "\"a\"b\"", r#""a\b""#, "a b", "\"a b\"", "ä", "a\tb"]
        {
            assert_eq!(key(value), None, "{value}");
        }
        assert_eq!(key(&"k".repeat(256)), None);
    }
}
