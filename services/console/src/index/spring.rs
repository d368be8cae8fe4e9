//! The headers of Spring Kafka: of its blocking dead letters and of `@RetryableTopic`.
//!
//! Numbers are big-endian of 1, 4 or 8 bytes; times of retry topics are Java's `BigInteger.toByteArray`, the fewest bytes
//! that hold them. Some producers write decimal text.

use waybill_event::Headers;

use super::letter::{Dialect, Place, Told, message, text};
use super::record::millis;

/// The group in both dialects.
const GROUP: &str = "kafka_dlt-original-consumer-group";
const ATTEMPTS: &str = "retry_topic-attempts";

/// Names of one dialect.
struct Names {
    topic: &'static str,
    partition: &'static str,
    offset: &'static str,
    timestamp: &'static str,
    class: &'static str,
    cause: &'static str,
    message: &'static str,
}

const BLOCKING: Names = Names {
    topic: "kafka_dlt-original-topic",
    partition: "kafka_dlt-original-partition",
    offset: "kafka_dlt-original-offset",
    timestamp: "kafka_dlt-original-timestamp",
    class: "kafka_dlt-exception-fqcn",
    cause: "kafka_dlt-exception-cause-fqcn",
    message: "kafka_dlt-exception-message",
};

const RETRYABLE: Names = Names {
    topic: "kafka_original-topic",
    partition: "kafka_original-partition",
    offset: "kafka_original-offset",
    timestamp: "kafka_original-timestamp",
    class: "kafka_exception-fqcn",
    cause: "kafka_exception-cause-fqcn",
    message: "kafka_exception-message",
};

/// A key that could not be decoded has names of its own.
const KEY_CLASS: &str = "kafka_dlt-key-exception-fqcn";
const KEY_MESSAGE: &str = "kafka_dlt-key-exception-message";

/// What Spring says; `None` when it is not Spring's.
pub(super) fn read(all: &Headers) -> Option<(Dialect, Told)> {
    let any = |names: &Names| [names.topic, names.class, names.cause].iter().any(|n| all.get(n).is_some());
    let told = |names: &Names| Told {
        origin: Place {
            topic: text(all, names.topic),
            partition: integer(all, names.partition).and_then(|n| i32::try_from(n).ok()).filter(|n| *n >= 0),
            offset: integer(all, names.offset).filter(|n| *n >= 0),
            timestamp_ms: big(all, names.timestamp).filter(|n| millis(*n).is_some()),
        },
        group: text(all, GROUP).unwrap_or_default(),
        // The outer class is nearly always the listener's wrapper.
        error_code: text(all, names.cause)
            .or_else(|| text(all, names.class))
            .or_else(|| text(all, KEY_CLASS))
            .unwrap_or_default(),
        error_class: String::new(),
        error_message: message(all, names.message).or_else(|| message(all, KEY_MESSAGE)),
        attempts: integer(all, ATTEMPTS).and_then(|n| i32::try_from(n).ok()).filter(|n| *n >= 0),
        failed_at: None,
    };
    if any(&RETRYABLE) {
        return Some((Dialect::SpringRetryable, told(&RETRYABLE)));
    }
    (any(&BLOCKING) || all.get(KEY_CLASS).is_some()).then(|| (Dialect::Spring, told(&BLOCKING)))
}

/// The number in a header of Spring's that is binary, for showing; `None` for every other header.
pub(crate) fn number(name: &str, value: &[u8]) -> Option<i64> {
    let numbers = ["-partition", "-offset", "-timestamp", "topic-attempts"];
    let ours = name.starts_with("kafka_") || name.starts_with("retry_topic-");
    (ours && numbers.iter().any(|end| name.ends_with(end)))
        .then(|| decimal(value).or_else(|| signed(value)))?
}

/// Decimal text, or a number of 1, 4 or 8 bytes.
fn integer(all: &Headers, name: &str) -> Option<i64> {
    let bytes = all.get(name)?;
    decimal(bytes).or_else(|| matches!(bytes.len(), 1 | 4 | 8).then(|| signed(bytes))?)
}

/// Decimal text, or a number of up to 8 bytes.
fn big(all: &Headers, name: &str) -> Option<i64> {
    let bytes = all.get(name)?;
    decimal(bytes).or_else(|| signed(bytes))
}

/// Only digits: no partition, offset or count in binary looks like that for long.
fn decimal(bytes: &[u8]) -> Option<i64> {
    let digits = !bytes.is_empty() && bytes.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(bytes).ok().filter(|_| digits)?.parse().ok()
}

/// Two's complement, big-endian.
fn signed(bytes: &[u8]) -> Option<i64> {
    let first = *bytes.first().filter(|_| bytes.len() <= 8)?;
    let sign = if first & 0x80 == 0 { 0 } else { -1_i64 };
    Some(bytes.iter().fold(sign, |number, byte| (number << 8) | i64::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(list: &[(&str, &[u8])]) -> Headers {
        let mut headers = Headers::new();
        list.iter().for_each(|(name, value)| headers.push(*name, *value));
        headers
    }

    #[test]
    fn the_blocking_dialect() {
        let (dialect, told) = read(&headers(&[
            ("kafka_dlt-original-topic", b"orders"),
            ("kafka_dlt-original-partition", &3_i32.to_be_bytes()),
            ("kafka_dlt-original-offset", &77_i64.to_be_bytes()),
            ("kafka_dlt-original-timestamp", &1_790_000_000_000_i64.to_be_bytes()),
            ("kafka_dlt-original-consumer-group", b"billing"),
            (
                "kafka_dlt-exception-fqcn",
                b"org.springframework.kafka.listener.ListenerExecutionFailedException",
            ),
            ("kafka_dlt-exception-cause-fqcn", b"java.lang.IllegalStateException"),
            ("kafka_dlt-exception-message", b"no"),
        ]))
        .unwrap();
        assert_eq!(dialect, Dialect::Spring);
        assert_eq!((told.origin.topic.as_deref(), told.group.as_str()), (Some("orders"), "billing"));
        assert_eq!((told.origin.partition, told.origin.offset), (Some(3), Some(77)));
        assert_eq!(told.origin.timestamp_ms, Some(1_790_000_000_000));
        assert_eq!(told.error_code, "java.lang.IllegalStateException");
    }

    #[test]
    fn the_retryable_dialect_with_big_integers_and_legacy_attempts() {
        // BigInteger of today is six bytes.
        let time = &1_790_000_000_000_i64.to_be_bytes()[2..];
        for (attempts, expected) in [(&[3_u8][..], 3), (&[0, 0, 0, 4], 4), (b"12", 12)] {
            let (dialect, told) = read(&headers(&[
                ("kafka_original-topic", b"orders"),
                ("kafka_original-timestamp", time),
                ("kafka_original-offset", b"1234"),
                ("kafka_exception-fqcn", b"x.Y"),
                ("retry_topic-attempts", attempts),
            ]))
            .unwrap();
            assert_eq!(dialect, Dialect::SpringRetryable);
            assert_eq!((told.attempts, told.origin.offset), (Some(expected), Some(1234)));
            assert_eq!(told.origin.timestamp_ms, Some(1_790_000_000_000));
        }
    }

    #[test]
    fn bad_values_are_unknown() {
        let (_, told) = read(&headers(&[
            ("kafka_dlt-original-topic", b"orders"),
            ("kafka_dlt-original-partition", &[1, 2, 3]),
            ("kafka_dlt-original-offset", &[0xff; 9]),
            ("kafka_dlt-original-timestamp", &[0x7f; 8]),
            ("retry_topic-attempts", &[0xff]),
        ]))
        .unwrap();
        assert_eq!(told.origin, Place { topic: Some("orders".into()), ..Place::default() });
        assert_eq!(told.attempts, None);
        assert!(read(&headers(&[("a", b"b")])).is_none());
    }
}
