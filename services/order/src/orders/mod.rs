//! Orders: placing, reading, listing.

mod error;
mod find;
mod http;
mod list;
mod order;
mod place;
mod store;

use std::time::Duration;

use clap::Args;
use waybill_outbox::Outbox;
use waybill_service::gate::Gate;

pub use error::{Error, Violation};
pub use list::Position;
pub use order::{Item, MAX_TOTAL, Order, PaymentMethod, Status};
pub use place::{MAX_ITEMS, MAX_QUANTITY, MAX_SKU_BYTES, PlaceItem, PlaceOrder};

pub(crate) use http::router;
pub(crate) use place::is_sku;

use crate::idempotency::{self, Fingerprint, Outcome, Stored};
use crate::metrics::Metrics;

/// Rules of orders.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Settings {
    /// How long a card order waits for payment: the gateway's payment window. Longer, and customers meet a closed
    /// window; shorter, and orders expire under them.
    #[arg(long, env = "PAYMENT_WINDOW", default_value = "30m", value_parser = positive)]
    pub payment_window: Duration,
    /// How long an idempotency key is remembered: the gateway's contract. Shorter, and a late repetition makes a
    /// second order.
    #[arg(long, env = "IDEMPOTENCY_LIFETIME", default_value = "15d", value_parser = positive)]
    pub idempotency_lifetime: Duration,
}

/// Between one second and ten years: the sum with any date of ours is a date.
fn positive(text: &str) -> Result<Duration, String> {
    const LEAST: Duration = Duration::from_secs(1);
    const MOST: Duration = Duration::from_secs(10 * 366 * 24 * 3600);
    let duration = humantime::parse_duration(text).map_err(|e| e.to_string())?;
    if duration < LEAST || duration > MOST {
        return Err("it must be between 1s and 10 years".to_owned());
    }
    Ok(duration)
}

/// What the use cases work with.
#[derive(Debug)]
pub(crate) struct Orders {
    pub(crate) gate: Gate,
    pub(crate) outbox: Outbox,
    pub(crate) settings: Settings,
    pub(crate) metrics: Metrics,
}

impl Orders {
    /// The answer of an earlier request, if it was this request.
    fn replay(&self, stored: Stored, fingerprint: &Fingerprint) -> Result<Outcome, idempotency::Error> {
        let outcome = stored.replay(fingerprint)?;
        self.metrics.replayed();
        Ok(outcome)
    }
}
