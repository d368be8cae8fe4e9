//! Settings. The doc comments are the text of `--help`.

use clap::Args;
use waybill_outbox::DEFAULT_MAX_BYTES;
use waybill_service::{ConfigError, auth, http, jobs, kafka, postgres, telemetry};

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
    /// Largest event, in bytes with its headers. Must be the topics' `max.message.bytes`: larger, and the relay
    /// meets records that the broker refuses.
    #[arg(long, env = "OUTBOX_MAX_BYTES", default_value_t = DEFAULT_MAX_BYTES)]
    pub outbox_max_bytes: usize,
}

impl Config {
    /// Checks what needs no I/O.
    ///
    /// # Errors
    /// Names the setting.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.kafka.client_settings().map(drop)
    }
}
