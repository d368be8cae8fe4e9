//! Two real processes on one database: stopped beyond their leases, killed, and refused by the channel.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use uuid::Uuid;
use waybill_event::OrderEvent;
use waybill_notification::notices::Locale;
use waybill_testkit::jwt::Issuer;
use waybill_testkit::process::{Process, free_address};
use waybill_testkit::{Topics, eventually};

use crate::fixture::{Fixture, order};

const ORDERS: usize = 60;
const ROUNDS: usize = 6;
/// Longer than the lease below.
const STOPPED: Duration = Duration::from_millis(1_300);

/// A process that only sends: its topics are empty.
struct Service {
    process: Process,
    settings: Vec<(String, String)>,
}

impl Service {
    fn start(fixture: &Fixture, topics: &Topics, issuer: &Issuer, log: &Path) -> Self {
        let settings: Vec<(String, String)> = [
            ("DATABASE_URL", fixture.database.url.clone()),
            ("KAFKA_BOOTSTRAP", topics.bootstrap.clone()),
            ("TOPIC_PREFIX", topics.prefix.clone()),
            ("JWT_JWKS_FILE", issuer.jwks_file().display().to_string()),
            ("HTTP_LISTEN", free_address().to_string()),
            ("METRICS_LISTEN", free_address().to_string()),
            ("LOG_FORMAT", "json".to_owned()),
            ("NOTIFICATION_LEASE", "1s".to_owned()),
            ("NOTIFICATION_POLL", "50ms".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let process = Process::start("waybill-notification", &["serve"], &settings, log);
        Self { process, settings }
    }

    fn signal(&self, signal: Signal) {
        let id = self.process.id().and_then(|id| Pid::from_raw(id.cast_signed())).expect("runs");
        kill_process(id, signal).expect("signal");
    }

    async fn is_up(&self) {
        let up = "notification service is up";
        eventually(async || if self.process.log().contains(up) { Ok(()) } else { Err(self.process.log()) })
            .await;
    }
}

/// Kinds in the order of their first delivery, by order; from the logs of both, by the time of each line.
fn first_deliveries(logs: [String; 2]) -> BTreeMap<String, Vec<String>> {
    let lines = logs.iter().flat_map(|log| log.lines());
    let lines = lines.filter(|line| line.contains("waybill_notification::delivery"));
    let mut lines: Vec<Value> = lines.map(|line| serde_json::from_str(line).expect("json")).collect();
    let text = |line: &Value, field: &str| line[field].as_str().expect("text").to_owned();
    lines.sort_by_key(|line| text(line, "timestamp"));
    let (mut known, mut kinds) = (BTreeSet::new(), BTreeMap::<_, Vec<_>>::new());
    for line in &lines {
        if known.insert(text(line, "notification_id")) {
            kinds.entry(text(line, "order_id")).or_default().push(text(line, "kind"));
        }
    }
    kinds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_customer_hears_of_the_end_before_the_beginning_whatever_fails() {
    let (fixture, issuer) = (Fixture::new(Locale::En).await, Issuer::new());
    let topics = Topics::create(&["orders.v1", "points.v1"], 1).await;
    let folder = tempfile::tempdir().expect("folder");
    // Two in three are refused until the channel is repaired.
    fixture
        .execute(
            "create function refuse() returns trigger language plpgsql as
             $$ begin if new.seq % 3 <> 0 then new.channel := 'pigeon'; end if; return new; end $$;
             create trigger refuse before insert on notification for each row execute function refuse();",
        )
        .await;
    let logs = ["a", "b"].map(|name| folder.path().join(name));
    let mut services = logs.each_ref().map(|log| Service::start(&fixture, &topics, &issuer, log));
    for service in &services {
        service.is_up().await;
    }
    let orders: Vec<OrderEvent> = (0..ORDERS).map(|_| order("placed")).collect();
    for (round, part) in orders.chunks(ORDERS / ROUNDS).enumerate() {
        for order in part {
            fixture.tell_all(order).await;
        }
        let service = &mut services[round % 2];
        service.signal(Signal::STOP);
        fixture
            .execute("update notification set channel = 'log' where channel = 'pigeon' and random() < 0.4")
            .await;
        // What disturbs, not what is waited for: the process is away for longer than its lease.
        tokio::time::sleep(STOPPED).await;
        service.signal(Signal::CONT);
        if round % 3 == 2 {
            service.process.kill().await;
            let (settings, log) = (service.settings.clone(), &logs[round % 2]);
            service.process = Process::start("waybill-notification", &["serve"], &settings, log);
        }
    }
    fixture.execute("drop trigger refuse on notification; update notification set channel = 'log'").await;
    fixture.all_sent().await;
    let told = first_deliveries(logs.map(|log| std::fs::read_to_string(log).expect("log")));
    let wanted = ["placed", "confirmed", "refunded", "payment_failed", "cancelled"];
    for order in orders.iter().map(|order| order.order_id) {
        assert_eq!(
            told.get(&Uuid::to_string(&order)).map(Vec::as_slice),
            Some(&wanted.map(str::to_owned)[..])
        );
    }
    let twice: i64 = sqlx::query_scalar("select count(*) from notification where attempts > 1")
        .fetch_one(fixture.pool())
        .await
        .expect("count");
    assert!(twice > 0, "nothing was ever tried again");
}
