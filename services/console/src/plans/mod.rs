//! Plans: what a replay would send, and what not and why. Nothing is sent without one.

mod check;
mod error;
pub(crate) mod http;
mod judge;
mod make;
mod store;
mod topics;
pub mod view;

pub use error::Error;
pub use judge::Skip;
pub(crate) use store::load;
