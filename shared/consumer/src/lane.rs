//! Subscriptions, and the one place where the event's type is erased.

use std::{fmt, sync::Arc};

use futures::future::BoxFuture;

use crate::{
    BatchHandler, Handler,
    engine::{Assignment, Engine, Stopped},
    record::Record,
    work::{Each, Whole},
};

/// A topic read by a group; becomes [`Subscribed`] with its handler.
#[derive(Debug, Clone)]
pub struct Subscription {
    topic: String,
    group: String,
}

/// A subscription with its handler.
pub struct Subscribed {
    pub(crate) topic: String,
    pub(crate) group: String,
    pub(crate) lane: Arc<dyn Lane>,
}

impl Subscription {
    /// Both without the installation's prefix. One group may subscribe to several topics.
    pub fn new(topic: impl Into<String>, group: impl Into<String>) -> Self {
        Self { topic: topic.into(), group: group.into() }
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
        Subscribed { topic: self.topic, group: self.group, lane }
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
}
