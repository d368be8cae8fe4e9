//! The ledger: what orders do to their customers' points.
//!
//! [`apply()`] is the only writer. [`Targets`] and [`ledger`] are pure: what a state asks for, and which entries lead
//! there.

mod apply;
mod error;
pub mod handler;
pub mod http;
pub mod ledger;
mod store;
mod targets;

pub use apply::{State, apply};
pub use error::Error;
pub use handler::MovePoints;
pub use store::{Discrepancy, discrepancies};
pub use targets::{Hold, Invalid, Targets};
