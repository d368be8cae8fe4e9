//! Producers that keep producing: each its own keys, at a steady pace, and now and then what a topic also holds:
//! copies, noise, null values and null keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use chrono::Utc;
use futures::future::try_join_all;
use rand::Rng;
use rand::rngs::StdRng;
use rdkafka::ClientConfig;
use rdkafka::message::{Header, OwnedHeaders};
use rdkafka::producer::{FutureProducer, FutureRecord};
use tokio::sync::RwLock;
use uuid::Uuid;
use waybill_event::headers;
use waybill_testkit::Topics;

use crate::chaos::dice;
use crate::events::order;
use crate::worker::TOPIC;
use crate::worker::script::is_sick;

/// A pause between two bursts.
const BEAT: Duration = Duration::from_millis(50);
const PRODUCERS: usize = 2;

/// What is produced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traffic {
    pub(crate) seed: u64,
    pub(crate) messages: usize,
    pub(crate) keys: usize,
    pub(crate) time: Duration,
    /// With copies, noise and nulls, and more of some keys than of others.
    pub(crate) odd: bool,
    /// Without the keys that [`Mode::Parked`](crate::worker::Mode::Parked) fails.
    pub(crate) healthy: bool,
}

/// A record to be sent, maybe more than once.
#[derive(Clone)]
struct Parcel {
    id: Uuid,
    key: Option<String>,
    value: Option<Vec<u8>>,
    traced: bool,
}

/// Key `n` of a seed.
pub(crate) fn key(seed: u64, n: usize) -> Uuid {
    Uuid::from_u128(u128::from(seed) << 64 | n as u128)
}

/// Sends all of it. Nothing is sent while somebody holds `quiet` for writing.
pub(crate) async fn produce(
    traffic: Traffic,
    topics: Arc<Topics>,
    quiet: Arc<RwLock<()>>,
) -> anyhow::Result<()> {
    let mut producers = tokio::task::JoinSet::new();
    for number in 0..PRODUCERS {
        producers.spawn(one(traffic, number, Arc::clone(&topics), Arc::clone(&quiet)));
    }
    while let Some(ended) = producers.join_next().await {
        ended.context("a producer panicked")??;
    }
    Ok(())
}

async fn one(
    traffic: Traffic,
    number: usize,
    topics: Arc<Topics>,
    quiet: Arc<RwLock<()>>,
) -> anyhow::Result<()> {
    let (producer, topic) = (producer(&topics.bootstrap)?, topics.name(TOPIC));
    let mut dice = dice(traffic.seed ^ (number as u64 + 1));
    let mut versions = vec![0_i64; (traffic.keys / PRODUCERS).max(1)];
    let total = traffic.messages / PRODUCERS;
    let (started, mut sent, mut kept) = (Instant::now(), 0, Vec::new());
    while sent < total {
        tokio::time::sleep(BEAT).await;
        let _going = quiet.read().await;
        let due = total as f64 * (started.elapsed().as_secs_f64() / traffic.time.as_secs_f64()).min(1.0);
        // After a pause not all at once.
        let burst = (due as usize).saturating_sub(sent).min(200);
        let mut parcels = Vec::with_capacity(burst);
        for _ in 0..burst {
            parcels.push(next(traffic, number, &mut versions, &mut dice));
            if traffic.odd && dice.random_bool(0.01) && !kept.is_empty() {
                let again: &Parcel = &kept[dice.random_range(0..kept.len())];
                parcels.push(again.clone());
            }
        }
        sent += burst;
        kept.extend(parcels.iter().cloned());
        kept.drain(..kept.len().saturating_sub(100));
        let sends: Vec<_> = parcels.iter().map(|parcel| send(&producer, &topic, parcel)).collect();
        try_join_all(sends).await?;
    }
    Ok(())
}

/// Idempotent: what is sent again after the broker's return keeps its place.
fn producer(bootstrap: &str) -> anyhow::Result<FutureProducer> {
    let mut config = ClientConfig::new();
    config
        .set("bootstrap.servers", bootstrap)
        .set("partitioner", "murmur2_random")
        .set("enable.idempotence", "true")
        .set("linger.ms", "1");
    config.create().context("producer")
}

fn next(traffic: Traffic, number: usize, versions: &mut [i64], dice: &mut StdRng) -> Parcel {
    // Some keys have many messages, so that many wait behind one that fails.
    let share: f64 = dice.random();
    let share = if traffic.odd { share * share } else { share };
    let local = ((versions.len() as f64 * share) as usize).min(versions.len() - 1);
    let sick = |local: usize| is_sick(key(traffic.seed, local * PRODUCERS + number));
    let local = if traffic.healthy && sick(local) { (local + 1) % versions.len() } else { local };
    versions[local] += 1;
    let order = order(key(traffic.seed, local * PRODUCERS + number), versions[local]);
    let mut random = [0; 10];
    dice.fill(&mut random);
    let millis = u64::try_from(Utc::now().timestamp_millis()).unwrap_or(0);
    let mut parcel = Parcel {
        id: uuid::Builder::from_unix_timestamp_millis(millis, &random).into_uuid(),
        key: Some(order.order_id.to_string()),
        value: waybill_event::encode(&order).ok(),
        traced: dice.random_bool(0.5),
    };
    match dice.random_range(0..1_000) {
        0..3 if traffic.odd => parcel.value = Some(vec![0xff, 0, 1]),
        3..5 if traffic.odd => parcel.value = None,
        5..6 if traffic.odd => parcel.value = Some(Vec::new()),
        6..11 if traffic.odd => parcel.key = None,
        _ => {}
    }
    parcel
}

async fn send(producer: &FutureProducer, topic: &str, parcel: &Parcel) -> anyhow::Result<()> {
    let id = parcel.id.to_string();
    let trace = format!("00-{}-00f067aa0ba902b7-01", parcel.id.simple());
    // As foreign producers write them: twice, null, empty, no text.
    let given: [(&str, Option<&[u8]>); 6] = [
        ("twice", Some(b"1")),
        (headers::CE_ID, Some(id.as_bytes())),
        ("null", None),
        ("twice", Some(&[0xff, 0])),
        ("empty", Some(b"")),
        (headers::TRACEPARENT, parcel.traced.then_some(trace.as_bytes())),
    ];
    let list = given
        .iter()
        .fold(OwnedHeaders::new(), |list, (key, value)| list.insert(Header { key, value: *value }));
    let mut record = FutureRecord::<str, [u8]>::to(topic).headers(list);
    (record.key, record.payload) = (parcel.key.as_deref(), parcel.value.as_deref());
    let patience = Duration::from_secs(60);
    producer.send(record, patience).await.map(drop).map_err(|(error, _)| anyhow::Error::new(error))
}
