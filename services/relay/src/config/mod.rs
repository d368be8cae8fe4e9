//! Settings of the relay. The doc comments are `--help`.

mod policy;
mod sources;

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;
use humantime::parse_duration;
use waybill_service::{ConfigError, kafka, telemetry};

pub use self::policy::{Policies, Policy};
pub use self::sources::{Database, Sources};

/// The owner of a bucket stops producing this long before its lease can be taken by another.
pub const MARGIN: Duration = Duration::from_secs(2);

/// What `relay serve` needs.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Config {
    /// Databases.
    #[command(flatten)]
    pub sources: Sources,
    /// Kafka.
    #[command(flatten)]
    pub kafka: kafka::Config,
    /// Pace, budgets and leases.
    #[command(flatten)]
    pub tuning: Tuning,
    /// Address of `/healthz` and `/readyz`.
    #[arg(long, env = "HTTP_LISTEN", default_value = "127.0.0.1:8084")]
    pub http_listen: SocketAddr,
    /// Address of `/metrics`.
    #[arg(long, env = "METRICS_LISTEN", default_value = "127.0.0.1:9084")]
    pub metrics_listen: SocketAddr,
    /// Logs and traces.
    #[command(flatten)]
    pub telemetry: telemetry::Config,
}

/// Pace, budgets and leases; the same for every source.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Tuning {
    /// Name of this process among the relays of a database; must be unique. Default: host name and a random id.
    #[arg(long, env = "RELAY_INSTANCE")]
    pub relay_instance: Option<String>,
    /// Pause between fetches while rows come. Longer: higher latency without a hint; shorter: more queries.
    #[arg(long, env = "RELAY_POLL_BUSY", default_value = "20ms", value_parser = parse_duration)]
    pub relay_poll_busy: Duration,
    /// Pause between fetches while nothing comes, jittered by a quarter. It bounds the latency of a lost hint.
    #[arg(long, env = "RELAY_POLL_IDLE", default_value = "250ms", value_parser = parse_duration)]
    pub relay_poll_idle: Duration,
    /// Pause between the steps that raise the floors, under which nothing unsent lies. Longer: fetches look at more
    /// rows that are in memory already; shorter: more queries.
    #[arg(long, env = "RELAY_FLOOR_INTERVAL", default_value = "250ms", value_parser = parse_duration)]
    pub relay_floor_interval: Duration,
    /// In this time each bucket is read from its very start once, in case a row lies below its floor.
    #[arg(long, env = "RELAY_FULL_SCAN", default_value = "1min", value_parser = parse_duration)]
    pub relay_full_scan: Duration,
    /// Rows that one fetch asks for.
    #[arg(long, env = "RELAY_BATCH", default_value_t = 500, value_parser = clap::value_parser!(u32).range(64..=10_000))]
    pub relay_batch: u32,
    /// Rows in memory and in flight at most. Too small: throughput falls; too large: more duplicates after a crash.
    #[arg(long, env = "RELAY_IN_FLIGHT_ROWS", default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(64..=100_000))]
    pub relay_in_flight_rows: u32,
    /// Bytes in memory and in flight at most, in MiB.
    #[arg(long, env = "RELAY_IN_FLIGHT_MIB", default_value_t = 16, value_parser = clap::value_parser!(u32).range(2..=1_024))]
    pub relay_in_flight_mib: u32,
    /// Longest time between an acknowledgement and its mark.
    #[arg(long, env = "RELAY_MARK_INTERVAL", default_value = "5ms", value_parser = parse_duration)]
    pub relay_mark_interval: Duration,
    /// Acknowledgements that are marked at once, without waiting for the interval.
    #[arg(long, env = "RELAY_MARK_BATCH", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub relay_mark_batch: u32,
    /// Time after which another relay may take a bucket whose owner fell silent. At least renew + 3 s.
    #[arg(long, env = "RELAY_LEASE_TTL", default_value = "10s", value_parser = parse_duration)]
    pub relay_lease_ttl: Duration,
    /// Time between renewals of the leases.
    #[arg(long, env = "RELAY_LEASE_RENEW", default_value = "3s", value_parser = parse_duration)]
    pub relay_lease_renew: Duration,
    /// How long sent rows are kept; 0 deletes a row instead of marking it. Unsent and dead rows always stay.
    #[arg(long, env = "RELAY_RETENTION", default_value = "3days", value_parser = parse_duration)]
    pub relay_retention: Duration,
    /// Time between purges of rows past their retention.
    #[arg(long, env = "RELAY_PURGE_INTERVAL", default_value = "1min", value_parser = parse_duration)]
    pub relay_purge_interval: Duration,
    /// Time between attempts on a topic that is unknown or not permitted.
    #[arg(long, env = "RELAY_TOPIC_RETRY", default_value = "5s", value_parser = parse_duration)]
    pub relay_topic_retry: Duration,
    /// Time between samples of the outbox for the metrics.
    #[arg(long, env = "RELAY_SAMPLE_INTERVAL", default_value = "5s", value_parser = parse_duration)]
    pub relay_sample_interval: Duration,
    /// Longest waiting for acknowledgements at shutdown; what is left is sent again after the next start.
    #[arg(long, env = "RELAY_FLUSH_TIMEOUT", default_value = "10s", value_parser = parse_duration)]
    pub relay_flush_timeout: Duration,
    /// What a dead row does to its key: `block` holds its later rows until an operator decides, `skip` goes on without
    /// it. `block,audit.v1=skip` says otherwise for a topic (named without prefix).
    #[arg(long, env = "RELAY_DEAD_POLICY", default_value = "block")]
    pub relay_dead_policy: Policies,
    /// Largest record in bytes that writers append (their `outbox.max_bytes`).
    #[arg(long, env = "OUTBOX_MAX_BYTES", default_value_t = 1 << 20, value_parser = clap::value_parser!(u32).range(1_024..=100_000_000))]
    pub outbox_max_bytes: u32,
}

impl Tuning {
    /// Checks what clap cannot check alone.
    ///
    /// # Errors
    /// A setting that contradicts another; the message names it.
    pub fn check(&self) -> Result<(), ConfigError> {
        let second = Duration::from_secs(1);
        if self.relay_lease_renew.is_zero() || self.relay_lease_ttl < self.relay_lease_renew + MARGIN + second
        {
            return Err(ConfigError::invalid(
                "RELAY_LEASE_TTL",
                "it must be at least RELAY_LEASE_RENEW + 3s, and RELAY_LEASE_RENEW more than 0",
            ));
        }
        for (name, value) in [
            ("RELAY_POLL_BUSY", self.relay_poll_busy),
            ("RELAY_POLL_IDLE", self.relay_poll_idle),
            ("RELAY_FLOOR_INTERVAL", self.relay_floor_interval),
            ("RELAY_FULL_SCAN", self.relay_full_scan),
            ("RELAY_TOPIC_RETRY", self.relay_topic_retry),
            ("RELAY_SAMPLE_INTERVAL", self.relay_sample_interval),
            ("RELAY_PURGE_INTERVAL", self.relay_purge_interval),
        ] {
            if value < Duration::from_millis(1) {
                return Err(ConfigError::invalid(name, "it must be at least 1ms"));
            }
        }
        Ok(())
    }

    /// The instance name: as given, else host name and a random id.
    pub fn instance(&self) -> String {
        let given = self.relay_instance.as_deref().map(str::trim).filter(|name| !name.is_empty());
        given.map_or_else(
            || {
                let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
                let host = if host.trim().is_empty() { "relay" } else { host.trim() };
                format!("{host}-{}", uuid::Uuid::new_v4())
            },
            str::to_owned,
        )
    }

    /// Bytes of `relay_in_flight_mib`.
    pub fn in_flight_bytes(&self) -> usize {
        self.relay_in_flight_mib as usize * (1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        sources: Sources,
        #[command(flatten)]
        tuning: Tuning,
    }

    fn parse(args: &[&str]) -> Result<Vec<String>, String> {
        let cli = Cli::try_parse_from([&["relay"], args].concat()).map_err(|e| e.to_string())?;
        cli.tuning.check().map_err(|e| e.to_string())?;
        let databases = cli.sources.parse().map_err(|e| e.to_string())?;
        Ok(databases.into_iter().map(|d| d.name).collect())
    }

    #[test]
    fn sources_come_from_flags_or_from_a_file() {
        let two = ["--source", "order=postgres://a@h/orders", "--source", "point=postgres://a@h/points"];
        assert_eq!(parse(&two).expect("legal"), ["order", "point"]);
        assert_eq!(parse(&["--source", "a=postgres://h/x,b=postgres://h/y"]).expect("legal"), ["a", "b"]);
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        std::fs::write(file.path(), "order=postgres://h/x\npoint=postgres://h/y\n").expect("written");
        let path = file.path().to_str().expect("utf-8");
        assert_eq!(parse(&["--relay-sources-file", path]).expect("legal"), ["order", "point"]);
    }

    #[test]
    fn a_wrong_setting_is_named_and_no_url_is_shown() {
        for (args, expected) in [
            (&[][..], "RELAY_SOURCES"),
            (&["--source", "postgres://u:hunter2@h/x"], "RELAY_SOURCES"),
            (&["--source", "Order=postgres://u:hunter2@h/x"], "lower-case"),
            (&["--source", "a=mysql://u:hunter2@h/x"], "RELAY_SOURCES"),
            (&["--source", "a=postgres://h/x,a=postgres://h/y"], "twice"),
            (&["--relay-sources-file", "/nowhere/file"], "RELAY_SOURCES_FILE"),
            (&["--source", "a=postgres://h/x", "--relay-lease-ttl", "4s"], "RELAY_LEASE_TTL"),
            (&["--source", "a=postgres://h/x", "--relay-poll-busy", "0ms"], "RELAY_POLL_BUSY"),
            (&["--source", "a=postgres://h/x", "--relay-batch", "1"], "relay-batch"),
            (&["--source", "a=postgres://h/x", "--relay-dead-policy", "drop"], "relay-dead-policy"),
            (&["--source", "a=postgres://h/x", "--relay-pooler", "session"], "relay-pooler"),
        ] {
            let message = parse(args).expect_err(expected);
            assert!(message.contains(expected) && !message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn the_readme_lists_every_setting() {
        let readme = include_str!("../../README.md");
        for argument in Cli::command().get_arguments() {
            let Some(name) = argument.get_env().and_then(|name| name.to_str()) else { continue };
            assert!(readme.contains(&format!("`{name}`")), "{name} is not in the README");
        }
    }
}
