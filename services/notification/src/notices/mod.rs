//! What customers are told of: recorded with the event, sent after.

mod channel;
pub mod http;
pub mod metrics;
mod record;
mod send;
mod store;
mod templates;

pub use channel::{Channel, SendError};
pub use metrics::OldestUnsent;
pub use record::{OrderNotices, PointNotices};
pub use send::{ATTEMPTS, KIND, worker};
pub use store::Notification;
pub use templates::{Locale, Notice};
