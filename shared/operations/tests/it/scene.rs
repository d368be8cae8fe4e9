//! A consumer that does not run: what operators ask needs no broker.

use waybill_consumer::{
    AfterDead, Consumer, Failure, Handler, Message, ReplaySafety, RetryPolicy, Settings, Subscription, Tx,
};
use waybill_event::PointEvent;
use waybill_testkit::Database;

use crate::server::Server;

struct Nothing;

impl Handler for Nothing {
    type Event = PointEvent;

    async fn handle(&self, _: &mut Tx<'_>, _: &Message<PointEvent>) -> Result<(), Failure> {
        Ok(())
    }
}

/// A service with its database.
pub(crate) struct Scene {
    pub(crate) database: Database,
    pub(crate) server: Server,
}

impl Scene {
    pub(crate) async fn new() -> Self {
        let database = Database::create(&[waybill_consumer::migrator()]).await;
        let settings =
            Settings::new(vec![("bootstrap.servers".to_owned(), "127.0.0.1:1".to_owned())], "test.");
        let keyed = Subscription::new("keyed.v1", "order");
        let keyed = keyed.key_ordered(RetryPolicy::default(), AfterDead::Block);
        let consumer = Consumer::builder(database.pool.clone(), settings)
            .subscribe(Subscription::new("points.v1", "order").retry(RetryPolicy::default()).handler(Nothing))
            .subscribe(
                Subscription::new("old.v1", "order").replay_safety(ReplaySafety::Never).handler(Nothing),
            )
            .subscribe(keyed.handler(Nothing))
            .build()
            .expect("builds");
        let operations = consumer.operations();
        let routes = |verifier| waybill_operations::consumer::router(operations, "test.", verifier).into();
        let server = Server::start(routes).await;
        Self { database, server }
    }
}
