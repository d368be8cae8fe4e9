//! The catalogue: what can be ordered and at which price.

mod http;
mod store;

use serde::Serialize;

pub(crate) use http::router;

/// A product that can be ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Product {
    /// Stock keeping unit.
    pub sku: String,
    /// Name, for people.
    pub name: String,
    /// Price of one piece, in the currency's minor unit.
    pub unit_price: i64,
    /// ISO 4217 code.
    pub currency: String,
}
