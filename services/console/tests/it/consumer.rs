//! The consumer of replays, played: it reads a replay topic and says what became of each record.

use std::collections::HashSet;
use std::sync::{Arc, Mutex};

use rdkafka::ClientConfig;
use rdkafka::consumer::{Consumer as _, StreamConsumer};
use rdkafka::message::{Headers as _, Message as _};
use uuid::Uuid;
use waybill_event::ReplayOutcome;
use waybill_testkit::Topics;

use crate::fixture::{Dead, OUTCOMES, REPLAY, SOURCE};

/// What it does with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Does {
    Resolve,
    FailAgain,
    /// It dies, or is slow.
    SayNothing,
}

/// One that it has read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Got {
    pub(crate) message_id: Uuid,
    pub(crate) replay_id: Uuid,
    pub(crate) count: u32,
    pub(crate) key: Option<Vec<u8>>,
}

pub(crate) struct Played {
    got: Arc<Mutex<Vec<Got>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Played {
    /// Reads the replays of `point` from their beginning.
    pub(crate) fn start(topics: &Arc<Topics>, does: impl Fn(&Got) -> Does + Send + 'static) -> Self {
        let got: Arc<Mutex<Vec<Got>>> = Arc::default();
        let (topics, kept) = (topics.clone(), got.clone());
        let task = tokio::spawn(async move {
            let consumer: StreamConsumer = ClientConfig::new()
                .set("bootstrap.servers", &topics.bootstrap)
                .set("group.id", topics.name("point"))
                .set("auto.offset.reset", "earliest")
                .set("fetch.wait.max.ms", "20")
                .create()
                .expect("consumer");
            consumer.subscribe(&[&topics.name(REPLAY)]).expect("subscribes");
            loop {
                let message = consumer.recv().await.expect("record");
                let header = |name: &str| {
                    let headers = message.headers().expect("headers");
                    let found = headers.iter().find(|header| header.key == name).and_then(|h| h.value);
                    String::from_utf8(found.expect(name).to_vec()).expect("text")
                };
                let one = Got {
                    message_id: header("ce_id").parse().expect("id"),
                    replay_id: header("waybill-replay-id").parse().expect("id"),
                    count: header("waybill-replay-count").parse().expect("count"),
                    key: message.key().map(<[u8]>::to_vec),
                };
                let (value, does) = (message.payload().map(<[u8]>::to_vec), does(&one));
                drop(message);
                kept.lock().expect("not poisoned").push(one.clone());
                answer(&topics, &one, value, does).await;
            }
        });
        Self { got, task }
    }

    pub(crate) fn got(&self) -> Vec<Got> {
        self.got.lock().expect("not poisoned").clone()
    }

    /// Messages that came more than once in one replay.
    pub(crate) fn twice(&self) -> Vec<Got> {
        let mut seen = HashSet::new();
        self.got().into_iter().filter(|one| !seen.insert((one.message_id, one.replay_id))).collect()
    }
}

impl Drop for Played {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(topics: &Topics, one: &Got, value: Option<Vec<u8>>, does: Does) {
    let outcome = match does {
        Does::Resolve => "resolved",
        Does::SayNothing => return,
        Does::FailAgain => {
            let dead = Dead {
                message_id: one.message_id,
                key: one.key.clone(),
                value,
                replay: Some((one.replay_id, one.count)),
                ..Dead::new("")
            };
            return dead.produce(topics).await;
        }
    };
    say(topics, one.message_id, one.replay_id, outcome).await;
}

/// An outcome, as a consumer tells it.
pub(crate) async fn say(topics: &Topics, message_id: Uuid, replay_id: Uuid, outcome: &str) {
    let outcome = ReplayOutcome {
        message_id,
        replay_id,
        consumer_group: topics.name("point"),
        topic: topics.name(SOURCE),
        outcome: outcome.to_owned(),
        occurred_at: chrono::Utc::now(),
    };
    let value = waybill_event::encode(&outcome).expect("encodes");
    topics.produce_raw(OUTCOMES, Some(message_id.to_string().as_bytes()), Some(&value), &[]).await;
}
