//! Headers as a row holds them: in order, duplicates kept, null not empty, and legible to who looks into the table.

use serde_json::Value;
use waybill_event::{Header, Headers};

/// `[[name, value], …]`; a value is null, a text, or the array of its bytes.
pub(super) fn write(headers: &Headers) -> String {
    let value = |value: &[u8]| match std::str::from_utf8(value) {
        Ok(text) => Value::from(text),
        Err(_) => Value::from(value.to_vec()),
    };
    let header = |header: &Header| {
        let value = header.value.as_deref().map_or(Value::Null, value);
        Value::Array(vec![Value::from(header.name.as_str()), value])
    };
    Value::Array(headers.iter().map(header).collect()).to_string()
}

/// `None` when it was not written by [`write()`].
pub(super) fn read(text: &str) -> Option<Headers> {
    let list: Vec<(String, Value)> = serde_json::from_str(text).ok()?;
    list.into_iter().map(|(name, value)| Some(Header { name, value: bytes(value)? })).collect()
}

fn bytes(value: Value) -> Option<Option<Vec<u8>>> {
    match value {
        Value::Null => Some(None),
        Value::String(text) => Some(Some(text.into_bytes())),
        Value::Array(bytes) => {
            bytes.iter().map(|byte| u8::try_from(byte.as_u64()?).ok()).collect::<Option<_>>().map(Some)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn order_duplicates_nulls_and_bytes_survive() {
        let given = [
            Header::new("a", "1"),
            Header::null("b"),
            Header::new("a", vec![0xff, 0]),
            Header::new("", ""),
            Header::new("zero\0", "ze\0ro \u{fffd} é"),
        ];
        let given: Headers = given.into_iter().collect();
        assert_eq!(read(&write(&given)), Some(given));
        assert_eq!(read("[[1,2]]"), None);
        assert_eq!(read("[[\"a\",[256]]]"), None);
    }

    proptest! {
        #[test]
        fn every_list_survives(list: Vec<(String, Option<Vec<u8>>)>) {
            let given: Headers = list.into_iter().map(|(name, value)| Header { name, value }).collect();
            prop_assert_eq!(read(&write(&given)), Some(given));
        }
    }
}
