//! What cannot work is refused before anything connects; what is only away is waited for.

use std::time::{Duration, Instant};

use sqlx::PgPool;
use waybill_consumer::{Builder, Consumer, Error, Settings, Subscribed, Subscription};
use waybill_testkit::eventually;

use crate::support::{Effects, GROUP, Running, database, each};

/// Nothing listens on port 1.
fn nowhere() -> Settings {
    Settings::new(vec![("bootstrap.servers".to_owned(), "127.0.0.1:1".to_owned())], "")
}

fn on(topic: &str, group: &str) -> Subscribed {
    Subscription::new(topic, group).handler(Effects::default())
}

fn builder(settings: Settings) -> Builder {
    Consumer::builder(PgPool::connect_lazy("postgres://127.0.0.1:1/x").unwrap(), settings)
}

fn refused(builder: Builder) -> String {
    match builder.build() {
        Err(Error::Setting(problem)) => problem,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn names_and_settings_that_cannot_work_are_refused() {
    assert!(refused(builder(nowhere())).contains("no subscription"));
    let dotted = builder(nowhere()).subscribe(on("orders.v1", "point.v2"));
    assert!(refused(dotted).contains("no dots"));
    let twice = builder(nowhere()).subscribe(on("orders.v1", GROUP)).subscribe(on("orders.v1", GROUP));
    assert!(refused(twice).contains("twice"));
    let without = builder(Settings::new(Vec::new(), "")).subscribe(on("orders.v1", GROUP));
    assert!(refused(without).contains("bootstrap.servers"));
    let mut settings = nowhere();
    settings.drain_timeout = settings.max_poll_interval;
    assert!(refused(builder(settings).subscribe(on("orders.v1", GROUP))).contains("drain_timeout"));
    let fine = builder(nowhere()).subscribe(on("orders.v1", GROUP)).subscribe(on("points.v1", GROUP));
    fine.build().unwrap();
}

#[tokio::test]
async fn an_unreachable_broker_is_named_and_does_not_keep_the_consumer_from_stopping() {
    let (database, handler) = (database().await, Effects::default());
    let running = Running::start(&database.pool, nowhere(), each(&handler));
    let reason = eventually(async || running.status.ready().err().ok_or("ready")).await;
    assert_eq!(reason, "group point: no broker is reachable");
    let started = Instant::now();
    running.stop().await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
}
