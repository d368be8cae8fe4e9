//! Settings. The doc comments are the text of `--help`.

use std::time::Duration;

use clap::Args;
use waybill_service::{ConfigError, auth, http, jobs, kafka, postgres, telemetry};

use crate::notices::Locale;

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
    /// Pause between two looks for unsent notifications. Longer, and what a crash or a full queue left behind goes
    /// out later; shorter, and idle instances ask the database more often.
    #[arg(long, env = "NOTIFICATION_POLL", default_value = "1s", value_parser = humantime::parse_duration)]
    pub notification_poll: Duration,
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
        self.kafka.client_settings().map(drop)
    }
}
