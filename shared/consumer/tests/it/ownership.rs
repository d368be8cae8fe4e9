//! Who owns a partition decides alone: a member that was counted out neither commits offsets nor doubles effects,
//! and whatever members and pauses do at random, every partition goes on.

use std::{
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use rand::{Rng, SeedableRng, rngs::StdRng};
use tokio_util::sync::CancellationToken;
use waybill_consumer::{
    Consumer, Error, Failure, GroupProtocol, Handler, Message, Settings, Subscription, Tx,
};
use waybill_event::{Event, OrderEvent};
use waybill_testkit::{Topics, eventually};

use crate::support::{
    Act, Effects, GROUP, Running, Source, database, each, effects, ids, orders, settings, sorted, topics,
    until_committed, until_effects,
};

/// Blocks the very thread that polls, as a member does whose process was stopped.
struct Freeze {
    entered: mpsc::Sender<()>,
    thaw: Mutex<mpsc::Receiver<()>>,
}

impl Handler for Freeze {
    type Event = OrderEvent;

    async fn handle(&self, tx: &mut Tx<'_>, message: &Message<OrderEvent>) -> Result<(), Failure> {
        Handler::handle(&Effects::default(), tx, message).await?;
        if message.offset() == 0 {
            let _ = self.entered.send(());
            let _ = self.thaw.lock().unwrap().recv_timeout(Duration::from_secs(60));
        }
        Ok(())
    }
}

fn short_lived(topics: &Topics) -> Settings {
    let mut settings = settings(topics);
    settings.session_timeout = Duration::from_secs(6);
    settings.heartbeat = Duration::from_secs(1);
    settings.max_poll_interval = Duration::from_secs(6);
    settings.drain_timeout = Duration::from_secs(3);
    settings.idle_in_transaction = Duration::from_secs(60);
    settings.lock_timeout = Duration::from_millis(500);
    settings
}

async fn a_late_commit_does_not_move_the_new_owner(protocol: GroupProtocol) {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let (source, sent) = (Source::new(&topics), orders(30));
    source.orders(0, &sent[..20]).await;
    let mut settings = short_lived(&topics);
    settings.group_protocol = protocol;
    settings.batch_size = 1;
    let ((entered, frozen), (thaw, wait)) = (mpsc::channel(), mpsc::channel());
    let first =
        Subscription::new(OrderEvent::TOPIC, GROUP).handler(Freeze { entered, thaw: Mutex::new(wait) });
    let (url, settings_of_first, stop) = (database.url.clone(), settings.clone(), CancellationToken::new());
    let stopped = stop.clone();
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let pool = sqlx::PgPool::connect(&url).await.unwrap();
            Consumer::builder(pool, settings_of_first).subscribe(first).build().unwrap().run(stopped).await
        })
    });
    tokio::task::spawn_blocking(move || frozen.recv().unwrap()).await.unwrap();
    let second = Running::start(&database.pool, settings, each(&handler));
    // Counted out by the group; its transaction still holds the row of the first message.
    let taken = async || if second.status.assigned() == 1 { Ok(()) } else { Err("not assigned") };
    eventually(taken).await;
    eventually(async || second.status.blocked().pop().ok_or("does not wait for the row")).await;
    thaw.send(()).unwrap();
    let mut highest = None;
    eventually(async || {
        let committed = topics.committed(GROUP, OrderEvent::TOPIC, 0).await;
        assert!(committed >= highest, "moved back from {highest:?} to {committed:?}");
        highest = committed;
        if committed == Some(20) { Ok(()) } else { Err(committed) }
    })
    .await;
    source.orders(0, &sent[20..]).await;
    until_committed(&topics, 0, 30).await;
    stop.cancel();
    match tokio::task::spawn_blocking(move || thread.join().unwrap()).await.unwrap() {
        Ok(()) => {}
        // What this version of the client makes of being counted out there: the process would be started again.
        Err(Error::Fatal { .. }) if protocol == GroupProtocol::Consumer => {}
        Err(error) => panic!("{error}"),
    }
    assert_eq!(
        topics.committed(GROUP, OrderEvent::TOPIC, 0).await,
        Some(30),
        "also after the first has left"
    );
    assert_eq!(effects(&database.pool).await, ids(&sent), "each once, in order");
    second.stop().await;
}

#[tokio::test]
async fn a_late_commit_of_a_lost_partition_does_not_move_the_new_owner() {
    a_late_commit_does_not_move_the_new_owner(GroupProtocol::Classic).await;
}

#[tokio::test]
async fn a_late_commit_of_a_lost_partition_does_not_move_the_new_owner_under_the_consumer_protocol() {
    a_late_commit_does_not_move_the_new_owner(GroupProtocol::Consumer).await;
}

const PARTITIONS: i32 = 4;

/// Random bursts into tiny buffers, gates that hold a batch, and members that come, go and are dropped, without
/// waiting for any of it to settle. After each round a record sent to every partition must be handled.
async fn every_partition_goes_on_after_each_round(protocol: GroupProtocol, rounds: usize, seed: u64) {
    let (database, topics, handler) = (database().await, topics(PARTITIONS).await, Effects::default());
    let (source, mut random, mut expected) = (Source::new(&topics), StdRng::seed_from_u64(seed), Vec::new());
    let start = || {
        let mut settings = settings(&topics);
        settings.group_protocol = protocol;
        (settings.batch_size, settings.buffer_records) = (5, 10);
        settings.drain_timeout = Duration::from_secs(2);
        Running::start(&database.pool, settings, each(&handler))
    };
    let (mut members, mut pauses) = (vec![start()], 0);
    for round in 0..rounds {
        let gate = Arc::new(tokio::sync::Semaphore::new(0));
        let burst = orders(random.random_range(20..60));
        if random.random_bool(0.5) {
            handler.on(burst[0].order_id, Act::Gate(Arc::clone(&gate)));
        }
        source.orders(random.random_range(0..PARTITIONS), &burst).await;
        expected.extend(ids(&burst));
        match random.random_range(0..4) {
            0 | 1 if members.len() < 3 => members.push(start()),
            2 if members.len() > 1 => {
                let index = random.random_range(0..members.len());
                members.swap_remove(index).stop().await;
            }
            3 if members.len() > 1 => {
                let index = random.random_range(0..members.len());
                members.swap_remove(index).abort().await;
            }
            _ => {}
        }
        pauses += members.iter().map(|member| member.status.paused()).sum::<usize>();
        gate.add_permits(1_000);
        let started = Instant::now();
        for partition in 0..PARTITIONS {
            let probe = orders(1);
            source.orders(partition, &probe).await;
            expected.extend(ids(&probe));
        }
        until_effects(&database.pool, expected.len()).await;
        assert!(started.elapsed() < Duration::from_secs(40), "round {round} of seed {seed}");
    }
    assert_eq!(sorted(effects(&database.pool).await), sorted(expected));
    assert!(pauses > 0 || rounds < 5, "no partition was ever seen paused");
    for member in members {
        member.stop().await;
    }
}

/// Rounds of each protocol: the short form, or as many as `WAYBILL_ROUNDS` says.
fn rounds() -> usize {
    std::env::var("WAYBILL_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(12)
}

#[tokio::test]
async fn every_partition_goes_on_through_random_pauses_and_rebalances() {
    every_partition_goes_on_after_each_round(GroupProtocol::Classic, rounds(), 7).await;
}

#[tokio::test]
async fn every_partition_goes_on_through_random_pauses_and_rebalances_under_the_consumer_protocol() {
    every_partition_goes_on_after_each_round(GroupProtocol::Consumer, rounds(), 11).await;
}
