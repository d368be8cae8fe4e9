//! Fields with bounds, for `#[serde(deserialize_with)]`, in bodies and in queries: one rule for each kind, and one text
//! that says what the field must be. Absent and null are `None` where a field may be absent, which needs
//! `#[serde(default)]` beside it.
//!
//! An integer is a JSON number whose value is one, however it is written: `2`, `2.0` and `2e0` are the same. That is what
//! JSON Schema, and so the description of an API, says. In a query it is written as in JSON.

mod integer;
mod object;

use serde::de::Error;
use serde::{Deserialize, Deserializer};

pub(super) use integer::number;
pub use integer::{integer, integer_of, optional_integer, optional_unjudged, range, unjudged};
pub use object::{object, objects};

/// A text of `LEAST` to `MOST` characters.
///
/// # Errors
/// It is none, shorter or longer.
pub fn text<'de, const LEAST: usize, const MOST: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<String, D::Error> {
    Text::<LEAST, MOST>::deserialize(deserializer).map(|Text(text)| text)
}

/// As [`text`], where it may be absent.
///
/// # Errors
/// As [`text`].
pub fn optional_text<'de, const LEAST: usize, const MOST: usize, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<String>, D::Error> {
    let text = Option::<Text<LEAST, MOST>>::deserialize(deserializer)?;
    Ok(text.map(|Text(text)| text))
}

struct Text<const LEAST: usize, const MOST: usize>(String);

impl<'de, const LEAST: usize, const MOST: usize> Deserialize<'de> for Text<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if (LEAST..=MOST).contains(&text.chars().count()) {
            return Ok(Self(text));
        }
        Err(D::Error::custom(match LEAST {
            0 => format!("must be at most {MOST} characters"),
            _ => format!("must be {LEAST} to {MOST} characters"),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Body {
        #[serde(deserialize_with = "integer::<1, 1000, _, _>")]
        a: i32,
        #[serde(default, deserialize_with = "optional_integer::<-5, 5, _, _>")]
        b: Option<i64>,
        #[serde(default, deserialize_with = "optional_unjudged::<0, 9, _>")]
        c: Option<i64>,
        #[serde(default, deserialize_with = "optional_text::<1, 3, _>")]
        d: Option<String>,
    }

    #[test]
    fn an_integer_is_a_number_whose_value_is_one() {
        for (written, value) in [("2", 2), ("2.0", 2), ("2e0", 2), ("0.2e1", 2), ("20e-1", 2), ("1e3", 1000)]
        {
            let body: Body = serde_json::from_str(&format!(r#"{{"a":{written},"b":null}}"#)).expect(written);
            assert_eq!(body, Body { a: value, b: None, c: None, d: None }, "{written}");
            assert_eq!(integer_of(written, 1, 1000), Ok(value.into()), "{written}");
        }
        for wrong in [
            "0",
            "1001",
            "1.5",
            "-0",
            "1e400",
            "-1e400",
            "9223372036854775808",
            "99999999999999999999999",
            "1e-3",
        ] {
            let error = serde_json::from_str::<Body>(&format!(r#"{{"a":{wrong}}}"#)).expect_err(wrong);
            assert!(error.to_string().starts_with("must be an integer from 1 to 1000"), "{wrong}: {error}");
            assert_eq!(integer_of(wrong, 1, 1000), Err(range(1, 1000)), "{wrong}");
        }
        for wrong in ["\"2\"", "true", "null", "[]", "{}"] {
            let error = serde_json::from_str::<Body>(&format!(r#"{{"a":{wrong}}}"#)).expect_err(wrong);
            assert!(error.to_string().starts_with("must be an integer from 1 to 1000"), "{wrong}: {error}");
        }
        for no_json in ["1.", "01", "+1", "-", "1x1", "1e", "Infinity", "NaN"] {
            let error = serde_json::from_str::<Body>(&format!(r#"{{"a":{no_json}}}"#)).expect_err(no_json);
            assert!(error.is_syntax(), "{no_json}: {error}");
            assert_eq!(integer_of(no_json, 1, 1000), Err(range(1, 1000)), "{no_json}");
        }
        assert!(integer_of(" 2", 1, 3).is_err() && integer_of("", 1, 3).is_err());
    }

    #[test]
    fn what_is_judged_later_is_kept_and_texts_are_counted_in_characters() {
        let read = |text: &str| serde_json::from_str::<Body>(text).map_err(|error| error.to_string());
        for (written, kept) in
            [("-1", -1), ("1e30", i64::MAX), ("-1e30", i64::MIN), ("18446744073709551615", i64::MAX)]
        {
            assert_eq!(read(&format!(r#"{{"a":1,"c":{written}}}"#)).map(|body| body.c), Ok(Some(kept)));
        }
        assert!(read(r#"{"a":1,"c":"x"}"#).is_err_and(|e| e.starts_with("must be an integer from 0 to 9")));
        assert!(read(r#"{"a":1,"b":6}"#).is_err_and(|e| e.starts_with("must be an integer from -5 to 5")));
        assert!(read(r#"{"a":1,"d":"äöü"}"#).is_ok());
        for wrong in [r#""""#, r#""abcd""#] {
            let error = read(&format!(r#"{{"a":1,"d":{wrong}}}"#)).expect_err(wrong);
            assert!(error.starts_with("must be 1 to 3 characters"), "{error}");
        }
    }
}
