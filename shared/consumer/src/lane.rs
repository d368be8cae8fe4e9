//! Subscriptions, and the one place where the event's type is erased.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::{
    BatchHandler, Handler,
    engine::{Assignment, Engine, Stopped},
    line::Line,
    park::ParkSettings,
    policy::{AfterDead, Order, ReplaySafety, RetryPolicy},
    record::{self, Record},
    work::{Each, Whole},
};

/// A topic read by a group; becomes [`Subscribed`] with its handler.
///
/// Three ways to treat a message that fails for now: nothing of its partition passes it (the default), everything
/// passes it while it goes through retry topics ([`retry`](Self::retry)), or only other keys pass it
/// ([`key_ordered`](Self::key_ordered)).
#[derive(Debug, Clone)]
pub struct Subscription {
    topic: String,
    group: String,
    order: Order,
    replay_safety: ReplaySafety,
}

/// A subscription with its handler.
pub struct Subscribed {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) order: Order,
    pub(crate) replay_safety: ReplaySafety,
    pub(crate) lane: Arc<dyn Lane>,
}

impl Subscription {
    /// Both without the installation's prefix. One group may subscribe to several topics.
    pub fn new(topic: impl Into<String>, group: impl Into<String>) -> Self {
        let (order, replay_safety) = (Order::Partition, ReplaySafety::default());
        Self { topic: topic.into(), group: group.into(), order, replay_safety }
    }

    /// A message that fails transiently goes through the retry topics `<topic>.<group>.retry.<delay>`, and every other
    /// passes it, also later ones of its key: the handler must compare versions. After the last attempt or the
    /// deadline it is a dead letter. Replaces [`key_ordered`](Self::key_ordered).
    #[must_use]
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.order = Order::None(policy);
        self
    }

    /// Messages of one key are handled in their order, whatever fails: a key whose message fails transiently is
    /// parked in the database, with what comes behind it, until that message is handled or dead. Other keys flow.
    /// Replaces [`retry`](Self::retry); needs no retry topics.
    #[must_use]
    pub fn key_ordered(mut self, policy: RetryPolicy, after_dead: AfterDead) -> Self {
        self.order = Order::Key(policy, after_dead);
        self
    }

    /// Whether operators may replay dead letters of this subscription.
    #[must_use]
    pub fn replay_safety(mut self, safety: ReplaySafety) -> Self {
        self.replay_safety = safety;
        self
    }

    /// Handles message by message.
    pub fn handler<H: Handler>(self, handler: H) -> Subscribed {
        self.with(Arc::new(EachLane(handler)))
    }

    /// Handles batch by batch.
    pub fn batch_handler<H: BatchHandler>(self, handler: H) -> Subscribed {
        self.with(Arc::new(WholeLane(handler)))
    }

    fn with(self, lane: Arc<dyn Lane>) -> Subscribed {
        let Self { topic, group, order, replay_safety } = self;
        Subscribed { topic, group, order, replay_safety, lane }
    }
}

impl fmt::Debug for Subscribed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscribed")
            .field("topic", &self.topic)
            .field("group", &self.group)
            .finish_non_exhaustive()
    }
}

/// A handler of any event type.
pub(crate) trait Lane: Send + Sync {
    fn process<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        records: Vec<Record>,
        assignment: &'a mut Assignment,
    ) -> BoxFuture<'a, Result<(), Stopped>>;

    /// Drains what is parked, until it is stopped.
    fn drain<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        line: &'a Arc<Line>,
        park: ParkSettings,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, ()>;

    /// Whether this release can read a value; the stable code when not.
    fn decodes(&self, value: Option<&[u8]>) -> Result<(), &'static str>;
}

struct EachLane<H>(H);
struct WholeLane<H>(H);

impl<H: Handler> Lane for EachLane<H> {
    fn process<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        records: Vec<Record>,
        assignment: &'a mut Assignment,
    ) -> BoxFuture<'a, Result<(), Stopped>> {
        Box::pin(engine.process(Each(&self.0), records, assignment))
    }

    fn drain<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        line: &'a Arc<Line>,
        park: ParkSettings,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, ()> {
        Box::pin(engine.drain(Each(&self.0), line, park, stop))
    }

    fn decodes(&self, value: Option<&[u8]>) -> Result<(), &'static str> {
        record::decode_value::<H::Event>(value).map(drop).map_err(|error| error.code)
    }
}

impl<H: BatchHandler> Lane for WholeLane<H> {
    fn process<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        records: Vec<Record>,
        assignment: &'a mut Assignment,
    ) -> BoxFuture<'a, Result<(), Stopped>> {
        Box::pin(engine.process(Whole(&self.0), records, assignment))
    }

    fn drain<'a>(
        &'a self,
        engine: &'a Arc<Engine>,
        line: &'a Arc<Line>,
        park: ParkSettings,
        stop: &'a CancellationToken,
    ) -> BoxFuture<'a, ()> {
        Box::pin(engine.drain(Whole(&self.0), line, park, stop))
    }

    fn decodes(&self, value: Option<&[u8]>) -> Result<(), &'static str> {
        record::decode_value::<H::Event>(value).map(drop).map_err(|error| error.code)
    }
}
