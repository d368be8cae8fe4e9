//! Throughput of both kinds of handlers with the bare transactions beside them, and the time from produce to commit at
//! a steady rate. Run with `--release`; needs `DATABASE_URL` and `KAFKA_BOOTSTRAP`.

mod load;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use load::{GROUP, Ledger};
use sqlx::PgConnection;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use waybill_consumer::{BatchHandler, Consumer, Failure, Message, Outcome, Subscription, harness::Harness};
use waybill_event::{Event, MessageId, OrderEvent};

const PARTITIONS: i32 = 6;

async fn throughput(batches: bool, partitions: i32, count: usize) -> f64 {
    let (database, topics, ledger) =
        (load::database().await, load::filled(partitions, count, 0).await, Ledger::default());
    let subscription = Subscription::new(OrderEvent::TOPIC, GROUP);
    let subscribed = match batches {
        true => subscription.batch_handler(ledger.clone()),
        false => subscription.handler(ledger.clone()),
    };
    count as f64 / ledger.timed(&database.pool, load::settings(&topics), subscribed, count).await
}

/// The same transactions without Kafka, as many at a time as there are partitions.
async fn bare(batches: bool, count: usize) -> f64 {
    let database = load::database().await;
    let ledger = Ledger::default();
    let share = count / PARTITIONS as usize;
    let orders: Vec<Vec<OrderEvent>> =
        (0..PARTITIONS).map(|_| (0..share).map(|_| load::order(false)).collect()).collect();
    let started = Instant::now();
    let each = orders.iter().map(async |orders| {
        let harness = Harness::new(database.pool.clone(), GROUP);
        for chunk in orders.chunks(200) {
            let messages = chunk.iter().cloned().map(Message::new).collect();
            match batches {
                true => harness.deliver_batch(&ledger, messages).await?,
                false => harness.deliver(&ledger, messages).await?,
            };
        }
        anyhow::Ok(())
    });
    futures::future::try_join_all(each).await.expect("the database answers");
    (share * PARTITIONS as usize) as f64 / started.elapsed().as_secs_f64()
}

/// When each message was handed to the producer, and how long after that its effect was committed.
#[derive(Clone, Default)]
struct Clocked {
    ledger: Ledger,
    sent: Arc<Mutex<HashMap<MessageId, Instant>>>,
    taken: Arc<Mutex<Vec<Duration>>>,
}

impl BatchHandler for Clocked {
    type Event = OrderEvent;

    async fn handle(
        &self,
        tx: &mut PgConnection,
        messages: &[Message<OrderEvent>],
    ) -> Result<Vec<Outcome>, Failure> {
        BatchHandler::handle(&self.ledger, tx, messages).await
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        let sent = self.sent.lock().expect("not poisoned");
        let mut taken = self.taken.lock().expect("not poisoned");
        taken.extend(messages.iter().filter_map(|message| sent.get(&message.id)).map(Instant::elapsed));
    }
}

async fn latency(rate: u32, seconds: u32) {
    let (database, topics, clocked) =
        (load::database().await, load::filled(16, 0, 0).await, Clocked::default());
    let subscribed = Subscription::new(OrderEvent::TOPIC, GROUP).batch_handler(clocked.clone());
    let stop = CancellationToken::new();
    let consumer = Consumer::builder(database.pool.clone(), load::settings(&topics)).subscribe(subscribed);
    let consumer = consumer.build().expect("settings");
    let status = consumer.status();
    let running = tokio::spawn(consumer.run(stop.clone()));
    while status.assigned() < 16 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (producer, topic) = (load::producer(&topics, 0), topics.name(OrderEvent::TOPIC));
    let acked = Arc::new(Mutex::new(Vec::new()));
    let mut tick = tokio::time::interval(Duration::from_secs(1) / rate);
    tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
    for number in 0..rate * (seconds + 3) {
        tick.tick().await;
        let (producer, topic, sent, acked) =
            (producer.clone(), topic.clone(), Arc::clone(&clocked.sent), Arc::clone(&acked));
        tokio::spawn(async move {
            let (order, id, started) = (load::order(false), MessageId::new(), Instant::now());
            // Cold connections, statements and caches are not what is asked for.
            if number >= rate * 3 {
                sent.lock().expect("not poisoned").insert(id, started);
            }
            load::send(&producer, &topic, number as i32 % 16, &order, id).await;
            acked.lock().expect("not poisoned").push(started.elapsed());
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    stop.cancel();
    running.await.expect("no panic").expect("no fault");
    for (name, times) in [("acknowledged", &acked), ("committed", &clocked.taken)] {
        let mut times = std::mem::take(&mut *times.lock().expect("not poisoned"));
        times.sort();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1_000.0;
        let (middle, most, worst) = (at(0.5), at(0.99), at(1.0));
        println!(
            "{rate:>5}/s {name:<12} p50 {middle:>6.1}  p99 {most:>6.1}  max {worst:>6.1} ms  n {}",
            times.len()
        );
    }
}

#[tokio::main]
async fn main() {
    println!("{PARTITIONS} partitions, messages/s, best of 3");
    for (name, batches, count) in [("single messages", false, 12_000), ("batches", true, 120_000)] {
        let alone = throughput(batches, 1, count / 4).await;
        let (mut through, mut without) = (0.0_f64, 0.0_f64);
        for _ in 0..3 {
            through = through.max(throughput(batches, PARTITIONS, count).await);
            without = without.max(bare(batches, count).await);
        }
        let ratio = through / without;
        println!(
            "{name:<16} {through:>8.0}   without Kafka {without:>8.0}   ratio {ratio:.2}   one partition {alone:>8.0}"
        );
    }
    println!("produce to ..., 16 partitions");
    latency(200, 20).await;
    latency(1_000, 10).await;
}
