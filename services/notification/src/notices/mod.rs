//! What customers are told of: recorded with the event, sent after.

mod channel;
pub mod http;
pub mod metrics;
mod record;
mod sender;
mod store;
mod templates;

pub use channel::{Channel, SendError};
pub use record::{OrderNotices, PointNotices};
pub use sender::{Queue, Sender};
pub use store::Notification;
pub use templates::{Locale, Notice};
