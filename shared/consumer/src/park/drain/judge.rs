//! What a failed head means, and how that is written down.

use std::time::Duration;

use sqlx::PgTransaction;
use waybill_event::MessageId;

use super::{Drainer, Outside, SOON, step::Step};
use crate::{
    Failure,
    batch::{Fallen, PANIC, PERMANENT, TRANSIENT},
    crash::CRASH,
    metrics,
    park::{
        settings::interval,
        store::{self, Head, KeyRow},
    },
    record::Undecodable,
    redirect::error_text,
    store::Lease,
    work::{Failed, Work},
};

impl<W: Work, O: Outside> Drainer<W, O> {
    /// What a failure means, written down; the dead letter when it was the last.
    pub(super) async fn judge(
        &self,
        tx: &mut PgTransaction<'_>,
        key: &KeyRow,
        head: &Head,
        failed: &Failed,
    ) -> Result<Option<Fallen>, sqlx::Error> {
        // A deadlock with another transaction is never the message's fault.
        if failed.failure.names_no_message() || !self.counts(head, &failed.failure) {
            store::hold(tx, key.id, head, interval(SOON)).await?;
            return Ok(None);
        }
        let attempt = head.attempt(key);
        let since = Duration::from_millis(u64::try_from(key.failing_ms).unwrap_or(0));
        let delay = self.park.delay(attempt, since).filter(|_| head.replay_id.is_none());
        let (class, delay) = match failed.failure {
            Failure::Permanent(_) => (PERMANENT, None),
            Failure::Transient(_) => (TRANSIENT, delay),
        };
        let Some(delay) = delay else {
            let dead = head.died(key, &self.topic, class, failed);
            self.condemn(tx, key.id, head, &dead).await?;
            return Ok(Some(dead));
        };
        let (code, text) = (failed.failure.code(), failed.failure.text());
        let attempts = i32::try_from(attempt).unwrap_or(i32::MAX);
        let failure = (&*code, &*text, failed.traceparent.as_deref());
        store::retry(tx, key.id, head.position, attempts, interval(delay), failure).await?;
        self.count(metrics::RETRIED);
        tracing::warn!(
            message_id = %head.message_id, topic = &*self.topic, attempts = attempt, code,
            error = error_text(&text), "parked message failed and is tried again"
        );
        Ok(None)
    }

    /// An unknown schema is waited for; anything else is dead at once.
    pub(super) async fn undecodable(
        &self,
        tx: &mut PgTransaction<'_>,
        key: &KeyRow,
        head: &Head,
        error: &Undecodable,
    ) -> Result<Option<Fallen>, sqlx::Error> {
        let waited = Duration::from_millis(u64::try_from(head.schema_ms).unwrap_or(0));
        if error.unknown_schema && waited < self.settings.schema_patience {
            store::await_schema(tx, head.position, error.code, &error.text).await?;
            store::hold(tx, key.id, head, interval(SOON)).await?;
            return Ok(None);
        }
        let failure = Failure::permanent(anyhow::anyhow!(error.text.clone()));
        if !self.counts(head, &failure) {
            store::hold(tx, key.id, head, interval(SOON)).await?;
            return Ok(None);
        }
        let dead = head.undecodable(key, &self.topic, error);
        self.condemn(tx, key.id, head, &dead).await?;
        Ok(Some(dead))
    }

    /// The handler panicked, and its transaction is gone.
    pub(super) async fn panicked(
        &self,
        key: &KeyRow,
        head: &Head,
        failed: &Failed,
        before: Option<i64>,
    ) -> anyhow::Result<Step> {
        let mut lease = Lease::acquire(&self.pool).await?;
        let mut tx = lease.begin(&self.settings).await?;
        // The connection that was closed may hold the key a little longer: it is waited for, else this would look as
        // if another instance had it, and the panic be forgotten.
        let locked = store::wait(&mut tx, key.id).await?;
        let still =
            store::head(&mut tx, key.id).await?.filter(|now| now.position == head.position && !now.dead);
        if !locked || still.is_none() {
            tx.commit().await?;
            lease.release();
            return Ok(Step::Rest);
        }
        if head.replay_id.is_none() && before != Some(head.position) {
            tx.commit().await?;
            lease.release();
            return Ok(Step::Panicked(head.position));
        }
        if !self.counts(head, &failed.failure) {
            store::hold(&mut tx, key.id, head, interval(SOON)).await?;
            tx.commit().await?;
            lease.release();
            return Ok(Step::Rest);
        }
        let dead = head.died(key, &self.topic, PANIC, failed);
        self.condemn(&mut tx, key.id, head, &dead).await?;
        tx.commit().await?;
        lease.release();
        self.bury(key, head, &dead).await
    }

    /// It has ended the process too often to be handled once more.
    pub(super) async fn crashed(
        &self,
        tx: &mut PgTransaction<'_>,
        key: &KeyRow,
        head: &Head,
    ) -> Result<Fallen, sqlx::Error> {
        let failure = Failure::permanent(anyhow::anyhow!("ended the process each time it was handled"));
        let mut dead = head.died(key, &self.topic, CRASH, &Failed::new(failure));
        CRASH.clone_into(&mut dead.code);
        self.condemn(tx, key.id, head, &dead).await?;
        Ok(dead)
    }

    fn counts(&self, head: &Head, failure: &Failure) -> bool {
        self.outside.tried(MessageId::from(head.message_id), head.replay_id.is_some(), Some(failure))
    }

    /// The connection is lost, or a statement of the runtime failed: nobody's attempt. The others must not wait for
    /// this one, whose handler may be what ends its connection.
    pub(super) async fn interrupted(
        &self,
        id: i64,
        head: &Head,
        error: &anyhow::Error,
    ) -> anyhow::Result<Step> {
        let mut lease = Lease::acquire(&self.pool).await?;
        let mut tx = lease.begin(&self.settings).await?;
        store::hold_at_least(&mut tx, id, head, interval(SOON)).await?;
        tx.commit().await?;
        lease.release();
        let error = error_text(&format!("{error:#}"));
        tracing::warn!(message_id = %head.message_id, topic = &*self.topic, error, "parked message is run again");
        Ok(Step::Rest)
    }

    async fn condemn(
        &self,
        tx: &mut PgTransaction<'_>,
        id: i64,
        head: &Head,
        dead: &Fallen,
    ) -> Result<(), sqlx::Error> {
        store::condemn(tx, &self.group, head.message_id, head.replay_id, dead).await?;
        self.hold(tx, id, head).await
    }

    /// While its dead letter is under way no other instance looks at the head: a time in its row and not a lock, so
    /// that no transaction is open while a broker is waited for.
    pub(super) async fn hold(
        &self,
        tx: &mut PgTransaction<'_>,
        id: i64,
        head: &Head,
    ) -> Result<(), sqlx::Error> {
        store::hold(tx, id, head, interval(self.park.lease)).await
    }
}
