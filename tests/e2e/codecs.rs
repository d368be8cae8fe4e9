//! Producers and topics of other teams compress as they like: whatever the codec, all are read, on every topic of a
//! message's way.

use std::collections::HashMap;
use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, AlterConfig, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use serde_json::json;
use sqlx::{AssertSqlSafe, PgPool};
use uuid::Uuid;
use waybill_event::{Event, MessageId, OrderEvent, headers};
use waybill_testkit::segments::CODECS;
use waybill_testkit::{Broker, eventually};
use waybill_tests::system::TOPICS;
use waybill_tests::{System, events, poison};

/// Every topic of the way of a message that is retried, and of one that dies and is replayed.
const WAY: [&str; 6] = [
    "orders.v1",
    "points.v1",
    "orders.v1.point.retry.1s",
    "orders.v1.point.dlt",
    "orders.v1.point.replay",
    "dlt.outcomes.v1",
];

/// Sends events as a client of another team, which compresses, in as few batches as it can.
struct Foreign(FutureProducer);

impl Foreign {
    fn new(system: &System, codec: &str, records: usize) -> Self {
        let mut config: ClientConfig = system.topics.client_settings().into_iter().collect();
        // The batch goes when it is full.
        config.set("compression.codec", codec).set("linger.ms", "10000");
        config.set("batch.num.messages", records.to_string()).set("batch.size", "8000000");
        config.set("message.max.bytes", "8000000");
        Self(config.create().expect("producer"))
    }

    /// To one partition; returns the ids.
    async fn send(&self, system: &System, orders: &[OrderEvent]) -> Vec<Uuid> {
        let topic = system.topics.name(OrderEvent::TOPIC);
        let sends = orders.iter().map(|order| async {
            let id = MessageId::new();
            let (value, key) = (waybill_event::encode(order).expect("encodes"), order.key());
            let (text, kind) = (id.to_string(), order.event_type());
            let list = OwnedHeaders::new()
                .insert(Header { key: headers::CE_ID, value: Some(&text) })
                .insert(Header { key: headers::CE_TYPE, value: Some(&kind) });
            let record = FutureRecord::to(&topic).partition(0).key(&key).payload(&value).headers(list);
            self.0.send(record, Duration::from_secs(30)).await.expect("acknowledged");
            id.as_uuid()
        });
        futures::future::join_all(sends).await
    }
}

fn order(customer: Uuid) -> OrderEvent {
    OrderEvent { customer_id: customer, ..events::order(Uuid::now_v7(), 1) }
}

/// Sets how a topic stores what comes, and waits until it does.
async fn compress(system: &System, kind: &str) {
    let config: ClientConfig = system.topics.client_settings().into_iter().collect();
    let admin: AdminClient<DefaultClientContext> = config.create().expect("admin client");
    let names = TOPICS.map(|topic| system.topics.name(topic));
    let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(20)));
    let topics = names.iter().map(|name| ResourceSpecifier::Topic(name));
    let wanted: Vec<_> =
        topics.clone().map(|topic| AlterConfig::new(topic).set("compression.type", kind)).collect();
    for result in admin.alter_configs(&wanted, &options).await.expect("broker answers") {
        result.expect("configured");
    }
    let topics: Vec<_> = topics.collect();
    eventually(async || {
        let described = admin.describe_configs(&topics, &options).await.map_err(|e| e.to_string())?;
        let is_set = |config: Result<rdkafka::admin::ConfigResource, _>| {
            let value =
                config.ok().and_then(|config| config.entry_map().get("compression.type")?.value.clone());
            value.as_deref() == Some(kind)
        };
        if described.into_iter().all(is_set) { Ok(()) } else { Err("not yet".to_owned()) }
    })
    .await;
}

/// The points of a customer cannot be written for now: another session holds them.
async fn hold(points: &PgPool, customer: Uuid) {
    let sql = format!(
        "create or replace function held() returns trigger language plpgsql as
         $$ begin raise exception 'not now' using errcode = '55P03'; end $$;
         create trigger held before insert or update on point_account
         for each row when (new.customer_id = '{customer}') execute function held()"
    );
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(points).await.expect("held");
}

async fn release(points: &PgPool) {
    sqlx::raw_sql("drop trigger held on point_account").execute(points).await.expect("released");
}

/// Waits until both groups have as many of them behind them, done or dead.
async fn handled(system: &System, ids: &[Uuid], count: usize) {
    let sql = "select count(*) from messaging.processed_message where message_id = any($1)";
    for pool in [&system.points.pool, &system.notifications.pool] {
        eventually(async || {
            let handled: i64 =
                sqlx::query_scalar(sql).bind(ids).fetch_one(pool).await.map_err(|e| e.to_string())?;
            if handled >= count as i64 { Ok(()) } else { Err(format!("{handled} of {count}")) }
        })
        .await;
    }
}

/// Each order has earned its points, once.
async fn earned(system: &System, orders: &[OrderEvent]) {
    let orders: Vec<Uuid> = orders.iter().map(|order| order.order_id).collect();
    let sql = "select count(*), sum(amount)::bigint from point_entry where order_id = any($1)";
    let earned: (i64, Option<i64>) =
        sqlx::query_as(sql).bind(&orders).fetch_one(&system.points.pool).await.expect("points");
    assert_eq!(earned, (orders.len() as i64, Some(10 * orders.len() as i64)));
}

/// Waits until as many letters of a group are in the console as have died, repairs the cause and replays them.
async fn replay(system: &System, dead: usize) {
    let operator = system.operator(&["view", "act"]);
    eventually(async || {
        let page = operator.ask("dlt list --state open --limit 100").await.map_err(|e| e.to_string())?;
        let open = page["items"].as_array().map(Vec::len);
        if open == Some(dead) { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
    poison::repair(&system.points.pool).await.expect("repaired");
    let line = format!("dlt replay --error-code {} --json", poison::ERROR_CODE);
    let ran = operator.run(&line).await.expect("runs");
    assert_eq!(ran.code, Some(0), "{ran:?}\n{}", system.log("console"));
    assert_eq!(ran.json().expect("JSON")["replay"]["progress"]["resolved"], json!(dead), "{ran:?}");
}

fn batches(broker: &Broker, system: &System) -> HashMap<&'static str, usize> {
    WAY.into_iter().map(|topic| (topic, broker.batches(&system.topics.name(topic)).len())).collect()
}

/// Ten orders, of which one dies and is replayed and one is retried, and one that the relay publishes.
async fn ten(broker: &Broker, system: &System, client: &str, topic: &str) {
    let name = format!("client {client}, topic {topic}");
    compress(system, topic).await;
    let before = batches(broker, system);
    let orders: Vec<_> = (0..10).map(|_| order(Uuid::now_v7())).collect();
    poison::refuse(&system.points.pool, orders[3].customer_id).await.expect("constraint");
    hold(&system.points.pool, orders[6].customer_id).await;
    let ids = Foreign::new(system, client, 10).send(system, &orders).await;
    eventually(async || {
        let retried = broker.batches(&system.topics.name(WAY[2])).len();
        if retried > before[WAY[2]] { Ok(()) } else { Err(format!("{name}: nothing is retried")) }
    })
    .await;
    release(&system.points.pool).await;
    let placed = system.customer().place("k", "TEA-1", 1, "ON_DELIVERY", None).await.expect("answer");
    assert_eq!(placed.status, 201);
    handled(system, &ids, 10).await;
    replay(system, 1).await;
    earned(system, &orders).await;
    system.settled().await;
    let own = broker.batches(&system.topics.name("orders.v1"));
    let codec = if topic == "producer" { client } else { topic };
    let stored = |topic: &str| if topic == "uncompressed" { "none" } else { topic }.to_owned();
    assert!(own.iter().any(|batch| batch.records == 10 && batch.codec == stored(codec)), "{name}: {own:?}");
    if topic != "producer" {
        for of in WAY {
            // Partitions are looked at one after the other: new batches are those of the topic's present codec.
            let batches = broker.batches(&system.topics.name(of));
            let new = batches.iter().filter(|batch| batch.codec == stored(topic)).count();
            assert!(
                new >= batches.len() - before[of] && batches.len() > before[of],
                "{name}, {of}: {batches:?}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orders_in_each_codec_are_read_on_every_topic_of_their_way() {
    let broker = Broker::start().await;
    let system = System::start_on(&broker.bootstrap(), &[]).await;
    for topic in ["uncompressed", "gzip", "snappy", "lz4", "zstd"] {
        ten(&broker, &system, "none", topic).await;
    }
    for client in CODECS {
        ten(&broker, &system, client, "producer").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_of_five_thousand_is_read_and_its_dead_letters_are_replayed() {
    const DEAD: usize = 25;
    let broker = Broker::start().await;
    let system = System::start_on(&broker.bootstrap(), &[]).await;
    compress(&system, "producer").await;
    let victim = Uuid::now_v7();
    poison::refuse(&system.points.pool, victim).await.expect("constraint");
    let customer = |n: usize| if n.is_multiple_of(5_000 / DEAD) { victim } else { Uuid::now_v7() };
    let orders: Vec<_> = (0..5_000).map(|n| order(customer(n))).collect();
    let ids = Foreign::new(&system, "zstd", orders.len()).send(&system, &orders).await;
    let stored = broker.batches(&system.topics.name("orders.v1"));
    assert!(stored.len() == 1 && stored[0].records == 5_000 && stored[0].codec == "zstd", "{stored:?}");
    // What dies from now on is stored by its topic in the codec that is the strangest to the build.
    compress(&system, "zstd").await;
    // By steps, for a slow machine: what matters is that none of them stands still.
    for count in (500..=orders.len()).step_by(500) {
        handled(&system, &ids, count).await;
    }
    replay(&system, DEAD).await;
    earned(&system, &orders).await;
}

/// A codec that librdkafka was built without, as far as it can tell.
#[tokio::test(flavor = "multi_thread")]
async fn the_console_tells_where_its_index_stands_still_and_goes_on_once_it_can_read() {
    const DLT: &str = "orders.v1.point.dlt";
    let broker = Broker::start().await;
    let mut system = System::prepare_on(&broker.bootstrap(), &[]).await;
    for key in ["first", "second"] {
        system.topics.produce_raw(DLT, Some(key.as_bytes()), Some(b"letter"), &[]).await;
    }
    let topic = system.topics.name(DLT);
    let stored = broker.batches(&topic);
    stored[0].name_codec(5);
    system.spawn("console", None);
    system.ready("console").await;
    let lines = |system: &System| {
        let log = system.log("console");
        let told = log.lines().filter(|line| line.contains("cannot decompress")).map(str::to_owned);
        told.collect::<Vec<_>>()
    };
    let told = eventually(async || {
        let told = lines(&system);
        if told.is_empty() { Err(system.log("console")) } else { Ok(told) }
    })
    .await;
    assert_eq!(told.len(), 1, "once: {told:#?}");
    for part in [topic.as_str(), "\"partition\":", "\"offset\":0", "codec 0x5"] {
        assert!(told[0].contains(part), "{part} is not in {}", told[0]);
    }
    stored[0].name_codec(0);
    let operator = system.operator(&["view"]);
    eventually(async || {
        let page = operator.ask("dlt list").await.map_err(|e| e.to_string())?;
        if page["items"].as_array().map(Vec::len) == Some(2) { Ok(()) } else { Err(page.to_string()) }
    })
    .await;
}
