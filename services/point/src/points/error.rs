//! What can go wrong while points are moved.

use uuid::Uuid;

use super::targets::Invalid;

/// Why a state was not applied.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The state can never be applied; nothing was written.
    #[error("order state cannot be applied")]
    Invalid(#[from] Invalid),
    /// The order's row or its account was not there to be locked; they are made anew at the next try.
    #[error("order {0} or its customer's account could not be locked")]
    Vanished(Uuid),
    /// The event was not appended.
    #[error("points event was not appended")]
    Outbox(#[from] waybill_outbox::Error),
    /// The database refused.
    #[error("ledger was not written")]
    Database(#[from] sqlx::Error),
}

impl Error {
    /// Whether another try can never succeed, as far as this crate knows; of [`Error::Database`] the SQLSTATE decides.
    pub fn is_permanent(&self) -> bool {
        match self {
            Self::Invalid(_) => true,
            Self::Outbox(error) => !matches!(error, waybill_outbox::Error::Database(_)),
            Self::Vanished(_) | Self::Database(_) => false,
        }
    }
}
