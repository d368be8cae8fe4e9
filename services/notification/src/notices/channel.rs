//! Where a notification goes.

use super::store::Notification;

/// A way to the customer. Later channels are further variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// A log line of target `waybill_notification::delivery`: the channel of customers without a contact.
    Log,
}

/// Why a notification was not sent.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// A newer version wrote a channel that this one does not have.
    #[error("channel {0:?} is not known to this version")]
    UnknownChannel(String),
}

impl Channel {
    /// The channel of that name.
    ///
    /// # Errors
    /// [`SendError::UnknownChannel`].
    pub fn named(name: &str) -> Result<Self, SendError> {
        match name {
            "log" => Ok(Self::Log),
            other => Err(SendError::UnknownChannel(other.to_owned())),
        }
    }

    /// Sends. The notification's id is the same at every repetition, for a receiver that deduplicates.
    pub fn send(self, notification: &Notification) {
        match self {
            Self::Log => tracing::info!(
                target: "waybill_notification::delivery",
                notification_id = %notification.notification_id,
                message_id = %notification.message_id,
                order_id = %notification.order_id,
                customer_id = %notification.customer_id,
                seq = notification.seq,
                kind = notification.kind,
                body = notification.body,
                "notification sent",
            ),
        }
    }
}
