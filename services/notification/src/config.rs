//! Settings. The doc comments are the text of `--help`.

use std::time::Duration;

use clap::Args;
use waybill_service::{ConfigError, auth, http, jobs, kafka, postgres, telemetry};

use crate::notices::{ATTEMPTS, Locale};

/// How long a shutdown waits for sends under way; the consumers have had their part of the grace period by then.
const DRAIN: Duration = Duration::from_secs(5);

/// Everything that `serve` can be told.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Config {
    /// Addresses.
    #[command(flatten)]
    pub http: http::Config,
    /// Database.
    #[command(flatten)]
    pub postgres: postgres::Config,
    /// Kafka.
    #[command(flatten)]
    pub kafka: kafka::Config,
    /// Tokens.
    #[command(flatten)]
    pub auth: auth::Config,
    /// Scheduled jobs.
    #[command(flatten)]
    pub jobs: jobs::Config,
    /// Logs, traces and metrics.
    #[command(flatten)]
    pub telemetry: telemetry::Config,
    /// Language of the messages. Fixed when the event is consumed: what is unsent keeps its language.
    #[arg(long, env = "NOTIFICATION_LOCALE", value_enum, default_value_t = Locale::Ko)]
    pub notification_locale: Locale,
    /// Pause between two looks for due tasks. Longer, and what was not handed over at once goes out later; shorter, and
    /// idle instances ask the database more often.
    #[arg(long, env = "NOTIFICATION_POLL", default_value = "1s", value_parser = humantime::parse_duration)]
    pub notification_poll: Duration,
    /// How long a notification that is being sent is safe from other instances without a heartbeat. Longer, and what a
    /// crash interrupted is sent later; shorter, and a hiccup sends it twice.
    #[arg(long, env = "NOTIFICATION_LEASE", default_value = "120s", value_parser = humantime::parse_duration)]
    pub notification_lease: Duration,
}

impl Config {
    /// Checks what needs no I/O.
    ///
    /// # Errors
    /// Names the setting.
    pub fn check(&self) -> Result<(), ConfigError> {
        if self.notification_poll < Duration::from_millis(10) {
            return Err(ConfigError::invalid("NOTIFICATION_POLL", "it is below 10 ms"));
        }
        if self.notification_lease < Duration::from_secs(1) {
            return Err(ConfigError::invalid("NOTIFICATION_LEASE", "it is below 1 s"));
        }
        self.kafka.client_settings().map(drop)
    }

    /// Settings of the worker that sends.
    pub(crate) fn sending(&self) -> waybill_task::Settings {
        waybill_task::Settings {
            poll: self.notification_poll,
            lease: self.notification_lease,
            heartbeat: self.notification_lease / 3,
            attempts: ATTEMPTS,
            drain_timeout: DRAIN,
            ..waybill_task::Settings::default()
        }
    }
}
