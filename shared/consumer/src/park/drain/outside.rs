//! What the drainer asks of the rest of the runtime.

use uuid::Uuid;
use waybill_event::{MessageId, TraceContext};

use crate::{Failure, batch::Fallen};

/// The outcome of a replay, to be published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) message_id: MessageId,
    pub(crate) replay_id: Uuid,
    /// `resolved` or `already_processed`.
    pub(crate) outcome: String,
    /// Of the replayed message.
    pub(crate) trace: Option<TraceContext>,
}

/// What to do with a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    Handle,
    /// It has ended the process each time that it was begun: dead, as `crash`.
    Crash,
    /// It may have ended the process before: [`alone`](Outside::alone) first, then begin again.
    Alone,
}

/// Publishing, and the breaker.
///
/// Both publications may come twice for one message, also from two instances, when a lease runs out or a process ends
/// in between: they carry the same ids, the console counts a dead letter by its id and merges outcomes by rank.
pub(crate) trait Outside: Send + Sync {
    /// Publishes a dead letter and returns once it is acknowledged. One try, shorter than
    /// [`ParkSettings::lease`](super::super::ParkSettings): the drainer comes again after a second.
    fn bury(&self, dead: &Fallen) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Publishes the outcome of a replay and returns once it is acknowledged; else as [`bury`](Self::bury).
    fn report(&self, told: &Told) -> impl Future<Output = anyhow::Result<()>> + Send;

    /// Leave to work on one head, held until its outcome is told. It is asked for before a connection is taken, and
    /// may be waited for as long as the breaker wants; stopping the drainer ends the wait.
    type Pass: Send + Sync;

    /// Waits for leave: the breaker, the gate of the process.
    fn admit(&self) -> impl Future<Output = Self::Pass> + Send;

    /// Names the head before it is handled, with the id of the replay that it is.
    fn begin(
        &self,
        pass: &Self::Pass,
        id: MessageId,
        replay: Option<Uuid>,
    ) -> impl Future<Output = anyhow::Result<Begun>> + Send {
        let _ = (pass, id, replay);
        async { Ok(Begun::Handle) }
    }

    /// Waits until nobody else in the process is in a handler. Asked for with no connection in hand: those who are in
    /// one need theirs.
    fn alone(&self, pass: &Self::Pass) -> impl Future<Output = ()> + Send {
        let _ = pass;
        async {}
    }

    /// The head that was begun has ended, however.
    fn end(&self, id: MessageId) -> impl Future<Output = anyhow::Result<()>> + Send {
        let _ = id;
        async { Ok(()) }
    }

    /// Hears how a head was handled (`None`: done), and says whether a failure counts. If not, nothing is published, no
    /// attempt is counted, and the head is tried again later.
    fn tried(&self, id: MessageId, replay: bool, failure: Option<&Failure>) -> bool;
}
