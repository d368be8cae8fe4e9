//! The one text form of a time in headers.

use chrono::{DateTime, Datelike, SecondsFormat, Utc};

/// RFC 3339 in UTC with `Z` and exactly six fraction digits: byte-equal to what Debezium writes for a
/// PostgreSQL `timestamptz`. Anything finer than a microsecond is cut off.
#[must_use]
pub fn ce_time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// Reads any RFC 3339 time, whatever its offset and precision; `None` when it is not one, or when its offset takes it out
/// of the years 0 to 9999, which [`ce_time`] could not write.
#[must_use]
pub fn parse(text: &str) -> Option<DateTime<Utc>> {
    let time = DateTime::parse_from_rfc3339(text).ok()?.with_timezone(&Utc);
    (0..=9999).contains(&time.year()).then_some(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn always_six_digits_and_z() {
        for (given, written) in [
            ("2026-11-30T01:02:03Z", "2026-11-30T01:02:03.000000Z"),
            ("2026-11-30T10:02:03.1+09:00", "2026-11-30T01:02:03.100000Z"),
            ("2026-11-30T01:02:03.123456789Z", "2026-11-30T01:02:03.123456Z"),
            ("1969-12-31T23:59:59.999999Z", "1969-12-31T23:59:59.999999Z"),
        ] {
            assert_eq!(ce_time(parse(given).unwrap()), written);
        }
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in [
            "",
            "2026-11-30",
            "2026-11-30T01:02:03",
            "yesterday",
            "9999-12-31T23:59:59-01:00",
            "0000-01-01T00:00:00+01:00",
        ] {
            assert_eq!(parse(text), None);
        }
    }
}
