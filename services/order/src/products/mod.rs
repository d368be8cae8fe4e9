//! The catalogue: what can be ordered and at which price.

mod http;
mod store;

use serde::Serialize;
use utoipa::ToSchema;

pub(crate) use http::router;

/// A product that can be ordered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Product {
    /// Stock keeping unit.
    #[schema(example = "TEA-100")]
    pub sku: String,
    /// Name, for people.
    #[schema(example = "Green tea, 100 g")]
    pub name: String,
    /// Price of one piece, in the currency's minor unit.
    #[schema(minimum = 0, example = 4500)]
    pub unit_price: i64,
    /// ISO 4217 code.
    #[schema(example = "KRW")]
    pub currency: String,
    /// Digits after the decimal point of the currency: with 2, a price of 450 reads 4.50.
    #[schema(minimum = 0, maximum = 4, example = 0)]
    pub minor_units: i16,
}
