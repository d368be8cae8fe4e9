//! Putting dead letters away, and bringing them back. The dead-letter record itself is never touched.

mod http;
mod store;

pub(crate) use http::router;
pub use http::{Away, AwayRequest};
