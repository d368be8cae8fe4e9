//! Who handles messages at the same time.

use std::sync::Arc;

use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::Mode;

/// The gate of a process: batches pass together, a suspect message alone, so that a crash is nobody else's. First
/// come, first served: who wants to be alone waits for those under way, and nobody overtakes it.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<RwLock<()>>);

/// Leave to be in a handler. Hold it during the transaction only: while one waits for a retry, those who must be alone
/// would wait too, and everybody behind them.
#[derive(Debug)]
#[must_use = "dropped, others may pass"]
pub enum Entry {
    /// With others.
    Shared(OwnedRwLockReadGuard<()>),
    /// Alone in the process.
    Alone(OwnedRwLockWriteGuard<()>),
}

impl Gate {
    /// Waits for its turn. Cancelled, it gives up its place. Take it before a slot or a connection, never with one in
    /// hand: the one who is alone needs them too.
    pub async fn enter(&self, mode: Mode) -> Entry {
        let gate = Arc::clone(&self.0);
        match mode {
            Mode::Normal => Entry::Shared(gate.read_owned().await),
            Mode::Suspect => Entry::Alone(gate.write_owned().await),
        }
    }
}
