//! What follows a head, outside of its transaction: dead letters, outcomes, the end of an empty park.

use waybill_event::{MessageId, TraceContext};

use super::{Drainer, Outside, SOON, Told, step::Step};
use crate::{
    Message,
    batch::Fallen,
    metrics,
    park::{
        headers,
        settings::interval,
        store::{self, Head, KeyRow, Untold},
    },
    policy::AfterDead,
    redirect::error_text,
    store::Lease,
    work::{self, Work},
};

impl<W: Work, O: Outside> Drainer<W, O> {
    pub(super) async fn bury_some(
        &self,
        key: &KeyRow,
        head: &Head,
        dead: Option<Fallen>,
    ) -> anyhow::Result<Step> {
        match dead {
            Some(dead) => self.bury(key, head, &dead).await,
            None => Ok(Step::Rest),
        }
    }

    /// The dead letter acknowledged, then the `dead` row and the end of the head. A crash in between, or a lease that
    /// ran out, publishes it once more under the same id: nobody counts it twice, and the rows are written once.
    pub(super) async fn bury(&self, key: &KeyRow, head: &Head, dead: &Fallen) -> anyhow::Result<Step> {
        let published = self.dead_letters.publish(self.outside.bury(dead)).await;
        let mut lease = Lease::acquire(&self.pool).await?;
        let mut tx = lease.begin(&self.settings).await?;
        let step = match published {
            Ok(()) => {
                fail::fail_point!("park.after_ack");
                let state = match self.park.after_dead {
                    // Nothing can stand behind a message without a key.
                    AfterDead::Block if !key.keyless => "blocked",
                    AfterDead::Block | AfterDead::Continue => "waiting",
                };
                store::buried(&mut tx, key.id, &self.group, head, state).await?;
                self.count(metrics::DEAD);
                Step::Next
            }
            Err(error) => {
                let error = error_text(&format!("{error:#}"));
                tracing::warn!(message_id = %head.message_id, topic = &*self.topic, error, "parked: no dead letter");
                store::hold(&mut tx, key.id, head, interval(SOON)).await?;
                Step::Rest
            }
        };
        tx.commit().await?;
        lease.release();
        Ok(step)
    }

    pub(super) async fn tell_some(&self, untold: Option<Untold>) -> anyhow::Result<Step> {
        match untold {
            Some(untold) => self.tell(&untold).await,
            None => Ok(Step::Next),
        }
    }

    /// The outcome acknowledged, then the end of the row. If it is not, the row stays, and it is told again when its
    /// lease ends.
    async fn tell(&self, untold: &Untold) -> anyhow::Result<Step> {
        let trace = headers::read(&untold.headers).and_then(|headers| TraceContext::from_headers(&headers));
        let (replay_id, outcome) = (untold.replay_id, untold.outcome.clone());
        let told = Told { message_id: MessageId::from(untold.message_id), replay_id, outcome, trace };
        match self.outcomes.publish(self.outside.report(&told)).await {
            Ok(()) => store::told(&self.pool, untold.position).await?,
            Err(error) => {
                let error = error_text(&format!("{error:#}"));
                tracing::warn!(message_id = %untold.message_id, %replay_id, error, "replay: outcome not told yet");
            }
        }
        Ok(Step::Next)
    }

    /// The key has no head whose turn it is: an outcome may be left to be told, or the park may be over.
    pub(super) async fn aside(&self, id: i64, empty: bool) -> anyhow::Result<Step> {
        if let Some(untold) = store::untold(&self.pool, id, interval(self.park.lease)).await? {
            return self.tell(&untold).await;
        }
        if empty {
            let mut lease = Lease::acquire(&self.pool).await?;
            let mut tx = lease.begin(&self.settings).await?;
            store::end(&mut tx, id).await?;
            tx.commit().await?;
            lease.release();
        }
        Ok(Step::Rest)
    }

    /// After the commit.
    pub(super) fn committed(&self, message: &Message<W::Event>) {
        self.count(metrics::DONE);
        work::committed(&self.work, std::slice::from_ref(message), &self.group);
    }

    pub(super) fn count(&self, outcome: &'static str) {
        self.metrics.count(outcome, &self.topic, &self.group, 1);
    }
}
