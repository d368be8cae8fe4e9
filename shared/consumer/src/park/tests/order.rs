//! No inversion, no loss, no second effect: many keys, random failures, zombies, several drainers, appends meanwhile.
//!
//! `WAYBILL_SEED` runs one seed again, `WAYBILL_ROUNDS` as many new ones.

use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use uuid::Uuid;
use waybill_event::OrderEvent;

use super::support::{Act, Scene, copy, message};
use crate::Message;

const PARTITIONS: usize = 3;
const KEYS: usize = 60;
const PER_KEY: i64 = 8;

/// A partition: its log, and the offset that is committed.
struct Partition {
    log: Vec<Message<OrderEvent>>,
    committed: AtomicUsize,
}

/// Failures by seed and message, whatever the interleaving.
fn act(seed: u64, key: &[u8], n: i64) -> Option<Act> {
    let mut hasher = DefaultHasher::new();
    (seed, key, n).hash(&mut hasher);
    let mut random = StdRng::seed_from_u64(hasher.finish());
    Some(match random.random_range(0..100) {
        0..15 => Act::TransientOnce,
        15..18 => Act::Permanent,
        18..20 => Act::Transient,
        20..22 => Act::Deadlock,
        22..24 => Act::Kill,
        24..26 => Act::PanicOnce,
        _ => return None,
    })
}

fn partitions(scene: &Scene, seed: u64) -> Vec<Arc<Partition>> {
    let mut random = StdRng::seed_from_u64(seed);
    let logs = (0..PARTITIONS).map(|partition| {
        let mut next: BTreeMap<usize, i64> =
            (0..KEYS).filter(|key| key % PARTITIONS == partition).map(|key| (key, 1)).collect();
        let mut log = Vec::new();
        while !next.is_empty() {
            let keys: Vec<usize> = next.keys().copied().collect();
            let key = keys[random.random_range(0..keys.len())];
            let n = next[&key];
            let name = format!("key-{key}").into_bytes();
            let given = message(Some(&name), n);
            if let Some(act) = act(seed, &name, n) {
                scene.handler.on(given.id, act);
            }
            log.push(given);
            if n == PER_KEY {
                next.remove(&key)
            } else {
                next.insert(key, n + 1)
            };
        }
        Arc::new(Partition { log, committed: AtomicUsize::new(0) })
    });
    logs.collect()
}

/// A member that owns the partition, or believes so: it takes batches from the committed offset on, and crashes in
/// the midst of some.
async fn consume(scene: Arc<Scene>, partition: Arc<Partition>, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    loop {
        let at = partition.committed.load(Ordering::SeqCst);
        if at == partition.log.len() {
            return;
        }
        let end = (at + random.random_range(1..12)).min(partition.log.len());
        let batch: Vec<_> = partition.log[at..end].iter().map(copy).collect();
        let crash = if random.random_range(0..4) == 0 { random.random_range(0..=4) } else { usize::MAX };
        if scene.try_deliver(&batch, crash).await.is_ok() {
            partition.committed.fetch_max(end, Ordering::SeqCst);
        }
    }
}

async fn round(seed: u64) {
    println!("WAYBILL_SEED={seed}");
    let mut scene = Scene::new().await;
    scene.park.retry.tiers = vec![Duration::from_millis(1); 2];
    scene.park.parallel = 2;
    scene.park.turn = 3;
    scene.park.poll = Duration::from_millis(2);
    let scene = Arc::new(scene);
    let partitions = partitions(&scene, seed);
    let drainers = [scene.drain(), scene.drain(), scene.drain()];
    let members = partitions.iter().enumerate().flat_map(|(n, partition)| {
        let scene = &scene;
        (0..2_u64).map(move |member| {
            let seed = seed ^ ((n as u64) << 8) ^ (member << 16);
            tokio::spawn(consume(Arc::clone(scene), Arc::clone(partition), seed))
        })
    });
    for member in members.collect::<Vec<_>>() {
        member.await.unwrap();
    }
    scene.until_empty().await;
    for drainer in drainers {
        drainer.stop().await;
    }
    check(&scene, &partitions).await;
}

async fn check(scene: &Scene, partitions: &[Arc<Partition>]) {
    type Row = (Vec<u8>, i64, Uuid, i64);
    let rows: Vec<Row> = sqlx::query_as("select key, n, message_id, before from effect order by seq")
        .fetch_all(&scene.pool)
        .await
        .unwrap();
    let mut by_key: BTreeMap<Vec<u8>, Vec<(i64, i64)>> = BTreeMap::new();
    let mut seen = BTreeMap::new();
    for (key, n, id, before) in rows {
        by_key.entry(key).or_default().push((n, before));
        *seen.entry(id).or_insert(0) += 1;
    }
    for (key, effects) in by_key {
        let key = String::from_utf8_lossy(&key).into_owned();
        assert!(effects.is_sorted(), "inversion of {key}: {effects:?}");
        // Each saw all before it, committed.
        assert!(effects.iter().zip(0..).all(|((_, before), rank)| *before == rank), "{key}: {effects:?}");
    }
    let dead: Vec<Uuid> =
        sqlx::query_scalar("select message_id from messaging.processed_message where outcome = 'dead'")
            .fetch_all(&scene.pool)
            .await
            .unwrap();
    for message in partitions.iter().flat_map(|partition| &partition.log) {
        let id = message.id.as_uuid();
        let effects = seen.get(&id).copied().unwrap_or(0);
        let ends = effects + usize::from(dead.contains(&id));
        assert_eq!(ends, 1, "{message:?}: {effects} effects, dead: {}", dead.contains(&id));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_key_is_ever_inverted_and_every_message_ends_once() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    if let Some(seed) = number("WAYBILL_SEED") {
        return round(seed).await;
    }
    for _ in 0..number("WAYBILL_ROUNDS").unwrap_or(2) {
        round(rand::random()).await;
    }
}
