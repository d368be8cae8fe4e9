//! Instruments of the service; those of HTTP are the frame's.

use opentelemetry::metrics::Counter;
use opentelemetry::{KeyValue, global};

use crate::orders::PaymentMethod;

/// Orders placed, by `payment_method`.
pub const ORDERS_PLACED: &str = "waybill.orders.placed";
/// Answers repeated for an idempotency key.
pub const IDEMPOTENT_REPLAYS: &str = "waybill.idempotency.replays";

/// Counters, made once the process's meter provider is set.
#[derive(Debug)]
pub(crate) struct Metrics {
    placed: Counter<u64>,
    replays: Counter<u64>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let meter = global::meter("waybill.order");
        Self {
            placed: meter
                .u64_counter(ORDERS_PLACED)
                .with_unit("{order}")
                .with_description("Orders placed")
                .build(),
            replays: meter
                .u64_counter(IDEMPOTENT_REPLAYS)
                .with_unit("{answer}")
                .with_description("Answers repeated for an idempotency key")
                .build(),
        }
    }

    pub(crate) fn placed(&self, method: PaymentMethod) {
        self.placed.add(1, &[KeyValue::new("payment_method", method.name())]);
    }

    pub(crate) fn replayed(&self) {
        self.replays.add(1, &[]);
    }
}
