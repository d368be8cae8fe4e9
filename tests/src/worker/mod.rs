//! A consumer that fails by a script, as a process of its own that can be killed: the subject of `chaos consume`.
//!
//! Two groups read one topic: `loose` with retry topics, `strict` in the order of keys. Both write each message into
//! the table `effect`, which has no constraint that would hide a second effect.

mod crash;
mod handler;
pub mod script;

use std::str::FromStr;
use std::time::Duration;

use clap::{Args, ValueEnum};
use rustix::process::{Signal, getpid, kill_process};
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use waybill_consumer::{
    AfterDead, BreakerPhase, Consumer, Operations, RetryPolicy, Settings, Subscribed, Subscription,
};
use waybill_event::{Event, OrderEvent};

use handler::Effects;
pub use script::Script;

/// Source of both groups.
pub const TOPIC: &str = OrderEvent::TOPIC;
/// Group with retry topics.
pub const LOOSE: &str = "loose";
/// Group in the order of keys.
pub const STRICT: &str = "strict";
/// Name of its sessions in `pg_stat_activity`.
pub const APPLICATION: &str = "worker";
/// What the last line of its log begins with when it has killed itself.
pub const LAST_WORDS: &str = "killed by itself: ";
/// Short, so that the group is whole again soon after a kill, and the next fault does not meet one that only waits.
pub const SESSION_TIMEOUT: Duration = Duration::from_secs(2);

/// The tables that handlers write and read, beside those of the consumer.
pub const TABLES: &str = "
create table effect (
    -- Order of the writes.
    seq bigint generated always as identity,
    consumer_group text not null,
    message_id uuid not null,
    key text,
    version bigint not null,
    attempt int not null,
    worker int not null,
    -- The newest effect of the same key that the transaction could see: two that ran side by side show here.
    previous bigint,
    made_at timestamptz not null,
    -- Of a message from a retry topic.
    due_at timestamptz,
    handled_at timestamptz not null default clock_timestamp()
);
create index effect_key_idx on effect (consumer_group, key, seq);
-- Messages whose cause of failing is gone.
create table repaired (message_id uuid not null, constraint repaired_pkey primary key (message_id));
-- Rows that handlers update in both orders, so that they deadlock.
create table hot (id int not null, n bigint not null default 0, constraint hot_pkey primary key (id));
insert into hot (id) values (0), (1);
-- While there is a row, every message fails.
create table outage (since timestamptz not null default clock_timestamp());
";

/// What a worker is told.
#[derive(Debug, Clone, Args)]
pub struct Options {
    /// Database with the consumer's tables and [`TABLES`].
    #[arg(long)]
    pub database: String,
    /// Kafka's `bootstrap.servers`.
    #[arg(long)]
    pub bootstrap: String,
    /// Prefix of topics and groups.
    #[arg(long, default_value = "")]
    pub prefix: String,
    /// Groups to run, of `loose` and `strict`.
    #[arg(long, value_delimiter = ',', default_values_t = [LOOSE.to_owned(), STRICT.to_owned()])]
    pub groups: Vec<String>,
    /// Delays of the retries.
    #[arg(long, value_delimiter = ',', value_parser = humantime::parse_duration, default_value = "200ms,500ms,1s")]
    pub tiers: Vec<Duration>,
    /// Seed of the script.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Which messages fail, and how.
    #[arg(long, value_enum, default_value_t = Mode::Chaos)]
    pub script: Mode,
    /// A crash point, `name@n` for its n-th passing. Needs a build with crash points.
    #[arg(long)]
    pub crash_at: Option<String>,
}

/// Which messages fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Each by the dice of its seed, in all ways.
    Chaos,
    /// Those of one key in ten are transient, one to as many times as there are tiers.
    Tiers,
    /// All, while the table `outage` has a row.
    Outage,
    /// Those of one key in ten, until the attempts are used up.
    Parked,
}

/// Consumes until SIGTERM.
///
/// # Errors
/// What the consumer cannot go on after.
pub async fn run(options: Options) -> anyhow::Result<()> {
    if let Some(point) = &options.crash_at {
        crash::arm(point)?;
    }
    let connect = PgConnectOptions::from_str(&options.database)?.application_name(APPLICATION);
    let pool = PgPoolOptions::new().max_connections(16).connect_with(connect).await?;
    let mut settings =
        Settings::new(vec![("bootstrap.servers".into(), options.bootstrap.clone())], options.prefix.clone());
    settings.session_timeout = SESSION_TIMEOUT;
    settings.heartbeat = Duration::from_millis(500);
    // Many small transactions, so that a kill meets each of their parts.
    settings.batch_size = 50;
    settings.retry_max = Duration::from_secs(5);
    if options.script == Mode::Chaos {
        // What is left at the end of a run are messages that fail for ever: probed slowly, they take minutes.
        settings.breaker.probe_min = Duration::from_millis(50);
        settings.breaker.probe_max = Duration::from_millis(200);
    }
    let mut consumer = Consumer::builder(pool.clone(), settings);
    for group in &options.groups {
        consumer = consumer.subscribe(subscribed(group, &options, pool.clone())?);
    }
    let stop = CancellationToken::new();
    let on_term = stop.clone();
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::spawn(async move {
        term.recv().await;
        on_term.cancel();
    });
    let consumer = consumer.build()?;
    let _resuming = AbortOnDropHandle::new(tokio::spawn(resume(consumer.operations())));
    Ok(consumer.run(stop).await?)
}

/// The operator who lets a line run again that too many permanent failures have stopped.
async fn resume(operations: Operations) {
    loop {
        tokio::time::sleep(Duration::from_millis(500)).await;
        for line in operations.subscriptions() {
            if line.breaker.phase == BreakerPhase::Stopped {
                // It is one of its own subscriptions.
                let _ = operations.resume(&line.topic, &line.group);
            }
        }
    }
}

/// SIGKILL, with a last word.
pub(crate) fn end_process(reason: &str) {
    eprintln!("{LAST_WORDS}{reason}");
    // There is no other end to this process than the signal.
    let _ = kill_process(getpid(), Signal::KILL);
}

fn subscribed(group: &str, options: &Options, pool: sqlx::PgPool) -> anyhow::Result<Subscribed> {
    let policy = RetryPolicy { tiers: options.tiers.clone(), ..RetryPolicy::default() };
    let subscription = Subscription::new(TOPIC, group);
    let subscription = match group {
        LOOSE => subscription.retry(policy),
        STRICT => subscription.key_ordered(policy, AfterDead::Continue),
        other => anyhow::bail!("no group {other}"),
    };
    Ok(subscription.handler(Effects::new(group, options, pool)))
}
