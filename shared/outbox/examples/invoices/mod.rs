//! What a team writes once for each topic: the event type, its schemas, and the aggregate's table.

use std::sync::LazyLock;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;
use waybill_event::{Codec, Event};

/// The aggregate's table.
pub(crate) const TABLE: &str = include_str!("invoice.sql");

/// Full state of an invoice after a change. The struct is named as the Avro record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct InvoiceEvent {
    pub(crate) invoice_id: Uuid,
    /// Rises with every event of the invoice, from 1: readers that keep the last state compare it.
    pub(crate) version: i64,
    /// `issued` or `paid`; a string, so that a new one does not stop an old reader.
    pub(crate) r#type: String,
    pub(crate) currency: String,
    pub(crate) total: i64,
    pub(crate) paid: i64,
    #[serde(with = "chrono::serde::ts_microseconds")]
    pub(crate) occurred_at: DateTime<Utc>,
    /// Came with 2.avsc: the serde default is the schema's default.
    #[serde(default)]
    pub(crate) discount: i64,
}

/// Every schema ever published, oldest first; the last one writes.
static CODEC: LazyLock<Codec> =
    LazyLock::new(|| Codec::embedded(InvoiceEvent::TOPIC, &[include_str!("1.avsc"), include_str!("2.avsc")]));

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

impl InvoiceEvent {
    /// A new invoice.
    pub(crate) fn issued(total: i64) -> Self {
        Self {
            invoice_id: Uuid::now_v7(),
            version: 1,
            r#type: "issued".into(),
            currency: "KRW".into(),
            total,
            paid: 0,
            occurred_at: Utc::now(),
            discount: 0,
        }
    }

    /// The same invoice after it was paid.
    pub(crate) fn paid(&self) -> Self {
        Self {
            version: self.version + 1,
            r#type: "paid".into(),
            paid: self.total,
            occurred_at: Utc::now(),
            ..self.clone()
        }
    }
}
