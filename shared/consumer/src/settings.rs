//! Settings of the runtime. The client's connection and security come from the caller; what order, loss and memory
//! depend on is set here and wins over the caller's.

use std::time::Duration;

use rdkafka::ClientConfig;

use crate::{Error, Horizon, breaker::BreakerSettings, park::ParkSettings, policy::delay_name};

/// Protocol between group members and broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupProtocol {
    /// The classic protocol with cooperative-sticky assignment.
    #[default]
    Classic,
    /// The broker's own assignment (KIP-848). Session and heartbeat times are then the broker's.
    Consumer,
}

/// Settings of a [`Consumer`](crate::Consumer). Start from [`Settings::new`] and change what must differ.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Properties of the client library for connection and security, `bootstrap.servers` among them.
    pub client: Vec<(String, String)>,
    /// Goes before every topic and group; empty by default.
    pub topic_prefix: String,
    /// Most messages in one transaction.
    pub batch_size: usize,
    /// How long a batch stays open after its first message while more is arriving.
    pub batch_wait: Duration,
    /// Batches in a transaction at the same time, over all groups: each holds a connection of the pool, which must
    /// have more of them than that.
    pub parallel_batches: usize,
    /// Records buffered per partition before it is paused.
    pub buffer_records: usize,
    /// Bytes buffered per partition before it is paused.
    pub buffer_bytes: usize,
    /// A member not heard of for this long is removed (classic protocol only).
    pub session_timeout: Duration,
    /// Time between heartbeats, at most a third of the session (classic protocol only).
    pub heartbeat: Duration,
    /// Longest time between two polls. Handlers cannot exceed it: polling never waits for them.
    pub max_poll_interval: Duration,
    /// Group protocol.
    pub group_protocol: GroupProtocol,
    /// `lock_timeout` of each batch's transaction.
    pub lock_timeout: Duration,
    /// `idle_in_transaction_session_timeout` of each batch's transaction: how long a handler may go without a
    /// statement.
    pub idle_in_transaction: Duration,
    /// How long an unknown schema counts as a deployment under way before the record is dead-lettered.
    pub schema_patience: Duration,
    /// How long the inbox remembers; older messages are dead-lettered as `stale`. The purge must be given the same.
    pub horizon: Horizon,
    /// How long a batch may go on after its partition was revoked or the consumer was stopped; then it is rolled
    /// back and handled again elsewhere.
    pub drain_timeout: Duration,
    /// First delay of an in-place retry; doubles, with full jitter.
    pub retry_min: Duration,
    /// Largest delay of an in-place retry.
    pub retry_max: Duration,
    /// How often the client is asked whether a partition stands still without reason.
    pub watchdog_interval: Duration,
    /// Shortest time between two offset commits of a group.
    pub commit_interval: Duration,
    /// When a subscription stops publishing what fails.
    pub breaker: BreakerSettings,
    /// How keys are parked where a subscription orders them. Policy and what follows a dead letter are the
    /// subscription's own.
    pub park: ParkSettings,
    /// Local time limit of a redirected record's delivery; a failed one is sent again, without limit.
    pub dead_letter_timeout: Duration,
}

impl Settings {
    /// The defaults.
    #[must_use]
    pub fn new(client: Vec<(String, String)>, topic_prefix: impl Into<String>) -> Self {
        Self {
            client,
            topic_prefix: topic_prefix.into(),
            batch_size: 200,
            batch_wait: Duration::from_millis(5),
            parallel_batches: 8,
            buffer_records: 5_000,
            buffer_bytes: 8 << 20,
            session_timeout: Duration::from_secs(10),
            heartbeat: Duration::from_secs(2),
            max_poll_interval: Duration::from_secs(120),
            group_protocol: GroupProtocol::Classic,
            lock_timeout: Duration::from_secs(2),
            idle_in_transaction: Duration::from_secs(10),
            schema_patience: Duration::from_secs(120),
            horizon: Horizon::default(),
            drain_timeout: Duration::from_secs(10),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(30),
            watchdog_interval: Duration::from_secs(10),
            commit_interval: Duration::from_millis(50),
            breaker: BreakerSettings::default(),
            park: ParkSettings::default(),
            dead_letter_timeout: Duration::from_secs(10),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        let wrong = |problem: &str| Err(Error::Setting(problem.to_owned()));
        if self.parallel_batches == 0 {
            return wrong("parallel_batches must not be 0");
        }
        if self.batch_size == 0 || self.buffer_records < self.batch_size || self.buffer_bytes == 0 {
            return wrong(
                "batch_size must be at least 1, buffer_records at least batch_size, buffer_bytes not 0",
            );
        }
        if self.retry_min.is_zero() || self.retry_max < self.retry_min {
            return wrong("retry_min must not be 0 nor over retry_max");
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        if !self.topic_prefix.chars().all(allowed) {
            return wrong("topic_prefix may hold letters, digits, dots, dashes and underscores");
        }
        if self.park.lease <= self.dead_letter_timeout {
            return wrong("park.lease must be over dead_letter_timeout");
        }
        let problems = [self.horizon.problem(), self.breaker.problem(), self.park.problem()];
        if let Some(problem) = problems.into_iter().flatten().next() {
            return wrong(problem);
        }
        if self.drain_timeout * 2 > self.max_poll_interval {
            return wrong("drain_timeout must be at most half of max_poll_interval");
        }
        if !self.client.iter().any(|(name, _)| name == "bootstrap.servers") {
            return wrong("client settings must name bootstrap.servers");
        }
        Ok(())
    }

    pub(crate) fn consumer(&self, group: &str) -> ClientConfig {
        let mut config = self.base();
        config
            .set("group.id", group)
            // Offsets move only by our own commits, after the database's.
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .set("auto.offset.reset", "earliest")
            .set("isolation.level", "read_committed")
            .set("max.poll.interval.ms", millis(self.max_poll_interval))
            // Without both, one consumer prefetches 64 MB, and a smaller queue fetches in gaps of a second.
            .set("queued.max.messages.kbytes", "16384")
            .set("fetch.queue.backoff.ms", "20")
            // A resumed partition joins the next fetch; the one under way must not wait long for the others. What is
            // there already is answered at once, so this delays no message.
            .set("fetch.wait.max.ms", "100")
            .set("topic.metadata.refresh.interval.ms", "30000")
            .set("statistics.interval.ms", millis(self.watchdog_interval));
        match self.group_protocol {
            GroupProtocol::Classic => config
                .set("group.protocol", "classic")
                .set("partition.assignment.strategy", "cooperative-sticky")
                .set("session.timeout.ms", millis(self.session_timeout))
                .set("heartbeat.interval.ms", millis(self.heartbeat)),
            GroupProtocol::Consumer => config.set("group.protocol", "consumer"),
        };
        config
    }

    /// `together`: what is sent within a millisecond shares a request.
    pub(crate) fn producer(&self, together: bool) -> ClientConfig {
        let mut config = self.base();
        config
            .set("enable.idempotence", "true")
            .set("acks", "all")
            .set("partitioner", "murmur2_random")
            .set("linger.ms", if together { "1" } else { "0" })
            .set("batch.num.messages", if together { "10000" } else { "1" })
            .set("message.timeout.ms", millis(self.dead_letter_timeout))
            // The broker decides what is too large: the fallback needs its answer, not a guess.
            .set("message.max.bytes", "16777216")
            // A topic that is missing is reported soon, and found soon after it was created.
            .set("topic.metadata.propagation.max.ms", "1000")
            .set("topic.metadata.refresh.interval.ms", "10000");
        config
    }

    fn base(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        config.extend(self.client.iter().cloned());
        config
    }
}

fn millis(time: Duration) -> String {
    time.as_millis().max(1).to_string()
}

/// The dead-letter topic of a group: `<prefix><topic>.<group>.dlt`.
#[must_use]
pub fn dead_letter_topic(prefix: &str, topic: &str, group: &str) -> String {
    format!("{prefix}{topic}.{group}.dlt")
}

/// A retry topic of a group: `<prefix><topic>.<group>.retry.<delay>`, the delay as `1s`, `10m` or `250ms`.
#[must_use]
pub fn retry_topic(prefix: &str, topic: &str, group: &str, delay: Duration) -> String {
    format!("{prefix}{topic}.{group}.retry.{}", delay_name(delay))
}

/// The topic by which a group's dead letters come back to it alone: `<prefix><topic>.<group>.replay`.
#[must_use]
pub fn replay_topic(prefix: &str, topic: &str, group: &str) -> String {
    format!("{prefix}{topic}.{group}.replay")
}
