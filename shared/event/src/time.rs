//! The one text form of a time in headers.

use chrono::{DateTime, SecondsFormat, Utc};

/// RFC 3339 in UTC with `Z` and exactly six fraction digits: byte-equal to what Debezium writes for a
/// PostgreSQL `timestamptz`. Anything finer than a microsecond is cut off.
#[must_use]
pub fn ce_time(time: DateTime<Utc>) -> String {
    time.to_rfc3339_opts(SecondsFormat::Micros, true)
}

/// Reads any RFC 3339 time, whatever its offset and precision; `None` when it is not one.
#[must_use]
pub fn parse(text: &str) -> Option<DateTime<Utc>> {
    DateTime::parse_from_rfc3339(text).ok().map(|time| time.with_timezone(&Utc))
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
        for text in ["", "2026-11-30", "2026-11-30T01:02:03", "yesterday"] {
            assert_eq!(parse(text), None);
        }
    }
}
