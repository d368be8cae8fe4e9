//! What is published, refused, or held back.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use uuid::Uuid;
use waybill_event::MessageId;

use crate::{
    Failure,
    batch::Fallen,
    park::{Begun, Outside, Told},
};

/// A dead letter as it was published: id, class, code, attempt, and when it failed first.
pub(super) type Letter = (Uuid, &'static str, String, u32, Option<String>);

/// Records what is published, refuses it, or holds it back.
#[derive(Debug, Clone, Default)]
pub(super) struct Published {
    pub(super) dead: Arc<Mutex<Vec<Letter>>>,
    pub(super) told: Arc<Mutex<Vec<(Uuid, Uuid, String)>>>,
    refuses: Arc<AtomicBool>,
    holds: Arc<AtomicBool>,
    pub(super) uncounted: Arc<AtomicBool>,
    pub(super) shut: Arc<AtomicBool>,
    pub(super) crashes: Arc<Mutex<Vec<MessageId>>>,
}

impl Published {
    pub(super) fn refuse(&self, refuses: bool) {
        self.refuses.store(refuses, Ordering::SeqCst);
    }

    /// Publishes, and never hears of the acknowledgement.
    pub(super) fn hold(&self, holds: bool) {
        self.holds.store(holds, Ordering::SeqCst);
    }

    pub(super) fn dead(&self) -> Vec<Letter> {
        self.dead.lock().unwrap().clone()
    }

    pub(super) fn told(&self) -> Vec<(Uuid, Uuid, String)> {
        self.told.lock().unwrap().clone()
    }

    async fn answer(&self) -> anyhow::Result<()> {
        if self.holds.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        Ok(())
    }

    fn accept(&self) -> anyhow::Result<()> {
        anyhow::ensure!(!self.refuses.load(Ordering::SeqCst), "refused");
        Ok(())
    }
}

impl Outside for Published {
    async fn bury(&self, dead: &Fallen) -> anyhow::Result<()> {
        self.accept()?;
        let first = dead.record.headers().text(waybill_event::headers::FIRST_FAILED_AT).map(str::to_owned);
        let letter = (dead.id.as_uuid(), dead.class, dead.code.clone(), dead.attempt, first);
        self.dead.lock().unwrap().push(letter);
        self.answer().await
    }

    async fn report(&self, told: &Told) -> anyhow::Result<()> {
        self.accept()?;
        self.told.lock().unwrap().push((told.message_id.as_uuid(), told.replay_id, told.outcome.clone()));
        self.answer().await
    }

    type Pass = ();

    async fn admit(&self) {
        while self.shut.load(Ordering::SeqCst) {
            tokio::task::yield_now().await;
        }
    }

    async fn begin(&self, (): &(), id: MessageId, _: Option<Uuid>) -> anyhow::Result<Begun> {
        let crashes = self.crashes.lock().unwrap().contains(&id);
        Ok(if crashes { Begun::Crash } else { Begun::Handle })
    }

    fn tried(&self, _: MessageId, _: bool, failure: Option<&Failure>) -> bool {
        failure.is_none() || !self.uncounted.load(Ordering::SeqCst)
    }
}
