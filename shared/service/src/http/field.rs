//! Fields with bounds, for `#[serde(deserialize_with)]`, in bodies and in queries: one rule for each kind, and one text
//! that says what the field must be. Absent and null are `None` where a field may be absent, which needs
//! `#[serde(default)]` beside it.
//!
//! An integer is a JSON number whose value is one, however it is written: `2`, `2.0` and `2e0` are the same. That is what
//! JSON Schema, and so the description of an API, says. In a query it is written as in JSON.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

/// An integer from `LEAST` to `MOST`.
///
/// # Errors
/// It is none, or out of bounds.
pub fn integer<'de, const LEAST: i64, const MOST: i64, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: TryFrom<i64>,
    D: Deserializer<'de>,
{
    of(Judged::<LEAST, MOST>::deserialize(deserializer)?)
}

/// As [`integer`], where it may be absent.
///
/// # Errors
/// As [`integer`].
pub fn optional_integer<'de, const LEAST: i64, const MOST: i64, T, D>(
    deserializer: D,
) -> Result<Option<T>, D::Error>
where
    T: TryFrom<i64>,
    D: Deserializer<'de>,
{
    Option::<Judged<LEAST, MOST>>::deserialize(deserializer)?.map(of).transpose()
}

fn of<const LEAST: i64, const MOST: i64, T: TryFrom<i64>, E: Error>(
    Judged(value): Judged<LEAST, MOST>,
) -> Result<T, E> {
    T::try_from(value).map_err(|_| E::custom(range(LEAST, MOST)))
}

/// Any integer; one that 64 bits cannot hold is their least or most. For those who judge it together with other fields, by
/// [`range`]: the bounds are for the text about what is no integer.
///
/// # Errors
/// It is none.
pub fn unjudged<'de, const LEAST: i64, const MOST: i64, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<i64, D::Error> {
    Unjudged::<LEAST, MOST>::deserialize(deserializer).map(Unjudged::clamped)
}

/// As [`unjudged`], where it may be absent.
///
/// # Errors
/// As [`unjudged`].
pub fn optional_unjudged<'de, const LEAST: i64, const MOST: i64, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<i64>, D::Error> {
    let value = Option::<Unjudged<LEAST, MOST>>::deserialize(deserializer)?;
    Ok(value.map(Unjudged::clamped))
}

/// An integer of a query, for those who judge its parameters one by one.
///
/// # Errors
/// It is none, or out of bounds; the text says what it must be.
pub fn integer_of(text: &str, least: i64, most: i64) -> Result<i64, String> {
    let value = number(text).and_then(|number| number.as_i128().or_else(|| whole(number.as_f64()?)));
    let value = value.and_then(|value| i64::try_from(value).ok());
    value.filter(|value| (least..=most).contains(value)).ok_or_else(|| range(least, most))
}

/// What an integer must be.
#[must_use]
pub fn range(least: i64, most: i64) -> String {
    format!("must be an integer from {least} to {most}")
}

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

/// A value that is read from a JSON object only: serde reads a struct from an array too, by position, and that would mean
/// something else once a member is added.
///
/// # Errors
/// It is none, or does not fit `T`.
pub fn object<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Object::deserialize(deserializer).map(|Object(value)| value)
}

/// A list of them.
///
/// # Errors
/// As [`object`].
pub fn objects<'de, T: Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    let list = Vec::<Object<T>>::deserialize(deserializer)?;
    Ok(list.into_iter().map(|Object(value)| value).collect())
}

/// A number as JSON writes it, and nothing around it.
pub(super) fn number(text: &str) -> Option<serde_json::Number> {
    let bare = !text.bytes().any(|byte| byte.is_ascii_whitespace());
    serde_json::from_str(text).ok().filter(|_| bare)
}

/// The integer that a double is; beyond 128 bits their least or most, which the cast gives.
fn whole(value: f64) -> Option<i128> {
    (value.fract() == 0.0).then_some(value as i128)
}

struct Judged<const LEAST: i64, const MOST: i64>(i64);

impl<'de, const LEAST: i64, const MOST: i64> Deserialize<'de> for Judged<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Unjudged::<LEAST, MOST>(value) = Unjudged::deserialize(deserializer)?;
        let value = i64::try_from(value).ok().filter(|value| (LEAST..=MOST).contains(value));
        value.map(Self).ok_or_else(|| D::Error::custom(range(LEAST, MOST)))
    }
}

/// Wider than what is asked for, so that what is out of its bounds stays out of them.
struct Unjudged<const LEAST: i64, const MOST: i64>(i128);

impl<const LEAST: i64, const MOST: i64> Unjudged<LEAST, MOST> {
    fn clamped(self) -> i64 {
        i64::try_from(self.0).unwrap_or(if self.0 < 0 { i64::MIN } else { i64::MAX })
    }
}

impl<'de, const LEAST: i64, const MOST: i64> Deserialize<'de> for Unjudged<LEAST, MOST> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_i64(Integer).map(Self).map_err(|error| {
            let text = error.to_string();
            // What is no JSON at all stays a fault of the body, and none of the field.
            let of_field = ["invalid type", "invalid value", "number out of range"];
            let of_field = of_field.iter().any(|start| text.starts_with(start));
            if of_field { D::Error::custom(range(LEAST, MOST)) } else { error }
        })
    }
}

struct Integer;

impl Visitor<'_> for Integer {
    type Value = i128;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an integer")
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<i128, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<i128, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<i128, E> {
        whole(value).ok_or_else(|| E::invalid_value(Unexpected::Float(value), &self))
    }
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

struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

struct ObjectVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
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
    fn the_largest_bounds_hold_too() {
        #[derive(Debug, Deserialize)]
        struct Large {
            #[allow(dead_code, reason = "only its deserialisation is tested")]
            #[serde(deserialize_with = "integer::<{ i64::MIN }, { i64::MAX }, _, _>")]
            a: i64,
        }
        for (written, taken) in [
            ("9223372036854775807", true),
            ("-9223372036854775808", true),
            ("9223372036854775808", false),
            ("18446744073709551615", false),
            ("1e30", false),
            ("-1e300", false),
        ] {
            let read = serde_json::from_str::<Large>(&format!(r#"{{"a":{written}}}"#));
            assert_eq!(read.is_ok(), taken, "{written}: {read:?}");
            assert_eq!(integer_of(written, i64::MIN, i64::MAX).is_ok(), taken, "{written}");
        }
    }

    #[test]
    fn an_object_is_no_list_of_its_members() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Outer {
            #[serde(deserialize_with = "object")]
            one: Inner,
            #[serde(deserialize_with = "objects")]
            many: Vec<Inner>,
        }
        #[derive(Debug, PartialEq, Deserialize)]
        struct Inner {
            a: u8,
        }
        let read = |text: &str| serde_json::from_str::<Outer>(text);
        let both = Outer { one: Inner { a: 1 }, many: vec![Inner { a: 2 }] };
        assert_eq!(read(r#"{"one":{"a":1},"many":[{"a":2}]}"#).expect("reads"), both);
        for wrong in
            [r#"{"one":[1],"many":[]}"#, r#"{"one":{"a":1},"many":[[2]]}"#, r#"{"one":null,"many":[]}"#]
        {
            assert!(read(wrong).is_err_and(|error| error.to_string().contains("a JSON object")), "{wrong}");
        }
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
