//! To copy beside your own event type: what was written is read, and a schema that breaks the rules is refused.

use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use waybill_event::{Codec, DecodeError, Event, decode, encode};

use crate::invoices::InvoiceEvent;
use crate::readme;

const FIRST: &str = include_str!("../../examples/invoices/1.avsc");
const SECOND: &str = include_str!("../../examples/invoices/2.avsc");

/// Declares the event as another version of the program has it.
macro_rules! invoice_event {
    ($schemas:expr, { $($(#[$attribute:meta])* $field:ident: $type:ty),* }) => {
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
        pub(super) struct InvoiceEvent {
            pub(super) invoice_id: Uuid,
            pub(super) version: i64,
            pub(super) r#type: String,
            pub(super) currency: String,
            pub(super) total: i64,
            pub(super) paid: i64,
            #[serde(with = "chrono::serde::ts_microseconds")]
            pub(super) occurred_at: DateTime<Utc>,
            $($(#[$attribute])* pub(super) $field: $type),*
        }

        static CODEC: LazyLock<Codec> = LazyLock::new(|| Codec::embedded("invoices.v1", $schemas));

        impl Event for InvoiceEvent {
            const TOPIC: &'static str = "invoices.v1";
            const AGGREGATE: &'static str = "invoice";

            fn codec() -> &'static Codec {
                &CODEC
            }

            fn event_type(&self) -> String {
                format!("example.invoice.{}", self.r#type)
            }

            fn key(&self) -> String {
                self.invoice_id.to_string()
            }
        }
    };
}

/// Before the field was added.
mod yesterday {
    use super::*;
    invoice_event!(&[FIRST], {});
}

/// The field was added without serde's default.
mod hasty {
    use super::*;
    invoice_event!(&[FIRST, SECOND], { discount: i64 });
}

fn written_yesterday() -> (yesterday::InvoiceEvent, Vec<u8>) {
    let event = yesterday::InvoiceEvent {
        invoice_id: Uuid::now_v7(),
        version: 1,
        r#type: "issued".into(),
        currency: "KRW".into(),
        total: 9_000,
        paid: 0,
        occurred_at: "2026-01-02T03:04:05.678901Z".parse().expect("time"),
    };
    let bytes = encode(&event).expect("encodes");
    (event, bytes)
}

#[test]
fn yesterdays_bytes_are_read_today_with_the_default() {
    let (event, bytes) = written_yesterday();
    let read: InvoiceEvent = decode(&bytes).expect("decodes");
    assert_eq!((read.invoice_id, read.occurred_at, read.discount), (event.invoice_id, event.occurred_at, 0));
}

#[test]
fn a_reader_of_yesterday_refuses_todays_bytes_so_consumers_go_first() {
    let mut today = InvoiceEvent::issued(9_000);
    today.discount = 500;
    let bytes = encode(&today).expect("encodes");
    let error = decode::<yesterday::InvoiceEvent>(&bytes).expect_err("unknown");
    assert!(error.is_unknown_schema());
    promised(&error.to_string(), "unknown schema fingerprint");
    assert_eq!(decode::<InvoiceEvent>(&bytes).expect("decodes").discount, 500);
}

#[test]
fn without_serdes_default_yesterdays_bytes_cannot_be_read() {
    let (_, bytes) = written_yesterday();
    let error = decode::<hasty::InvoiceEvent>(&bytes).expect_err("no default");
    assert!(matches!(error, DecodeError::Malformed(_)), "{error}");
    promised(&error.to_string(), "missing field");
}

#[test]
fn a_schema_that_breaks_the_rules_is_refused_as_the_readme_says() {
    let added = r#"{ "name": "discount", "type": "long", "default": 0, "doc""#;
    assert!(SECOND.contains(added));
    let second = |field: &str| SECOND.replace(added, &format!("{{ {field}, \"doc\""));
    for (newer, message) in [
        (second(r#""name": "discount", "type": "long""#), "a new field needs a default"),
        (
            second(r#""name": "discount", "type": ["null", "long"]"#),
            "an optional field needs the default null",
        ),
        (
            SECOND.replace(r#""name": "total", "type": "long""#, r#""name": "total", "type": "int""#),
            "the type changed; add a new field instead",
        ),
        (
            SECOND.replace(r#""name": "currency""#, r#""name": "money", "default": """#),
            "removed, but old readers have no default for it",
        ),
        (FIRST.replace("Full state", "The state"), "no reader can tell it from an earlier schema"),
    ] {
        let error = Codec::new("invoices.v1", &[FIRST, &newer]).expect_err(message);
        promised(&error.to_string(), message);
    }
}

/// The error says what the README says that it says.
fn promised(error: &str, message: &str) {
    assert!(error.contains(message), "{error:?} does not say {message:?}");
    assert!(readme::TEXT.contains(message), "the README does not say {message:?}");
}
