//! The frame of a Waybill process: configuration, telemetry, health, HTTP errors, authentication, shutdown,
//! the PostgreSQL pool, and the connection settings of Kafka.
//!
//! **Promises.** Bad settings end the process with a message that names the setting, before a port is bound. No
//! cause of a server error reaches a client; it is logged once, at the edge of the process. Telemetry never
//! blocks a request and never ends a process.
//!
//! **Does not promise.** It knows nothing of events, outboxes or consumers, and links no Kafka client: the crates
//! that produce and consume own their client settings.

#![warn(missing_docs)]

pub mod auth;
pub mod crash;
pub mod gate;
pub mod health;
pub mod http;
pub mod jobs;
pub mod kafka;
pub mod metrics;
pub mod migrations;
pub mod postgres;
pub mod secret;
pub mod shutdown;
pub mod telemetry;

/// A setting that cannot be used. The message names the setting.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Neither of the ways to give the setting was used.
    #[error("setting {name} is missing: give {name} or {name}_FILE")]
    Missing {
        /// Name of the environment variable.
        name: &'static str,
    },
    /// The setting's value cannot be used.
    #[error("setting {name} cannot be used: {reason}")]
    Invalid {
        /// Name of the environment variable.
        name: &'static str,
        /// What is wrong with it; never the value of a secret.
        reason: String,
    },
}

impl ConfigError {
    /// [`ConfigError::Invalid`] for the setting `name`.
    pub fn invalid(name: &'static str, reason: impl std::fmt::Display) -> Self {
        Self::Invalid { name, reason: reason.to_string() }
    }
}
