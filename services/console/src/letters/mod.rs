//! Finding dead letters: topics, groups of one cause, lists by any filter, one letter with all that is known of it.

mod error;
mod export;
mod filter;
pub(crate) mod http;
mod payload;
mod search;
pub(crate) mod store;
pub mod view;

pub use error::Error;
pub use filter::Filter;
pub(crate) use filter::{Selection, key_text};
pub(crate) use search::topics;
