//! Integers, judged by their value.

use std::fmt;

use serde::de::{Error, Unexpected, Visitor};
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

/// A number as JSON writes it, and nothing around it.
pub(in crate::http) fn number(text: &str) -> Option<serde_json::Number> {
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
