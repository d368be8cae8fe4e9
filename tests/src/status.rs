//! What `cargo dev status --json` says of a running stack.

use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

/// Environment variable that names the status file.
pub const STATUS: &str = "WAYBILL_STATUS";

/// Addresses of a running stack.
#[derive(Debug, Clone, Deserialize)]
pub struct Status {
    /// Databases.
    pub database: Databases,
    /// Kafka.
    pub kafka: Kafka,
    /// Goes before every topic and group.
    pub topic_prefix: String,
    /// Folder of the development key.
    pub jwt_dir: PathBuf,
    /// Every process.
    pub processes: Vec<Process>,
}

/// Database URLs.
#[derive(Debug, Clone, Deserialize)]
pub struct Databases {
    /// Of the order service.
    pub orders: String,
    /// Of the point service.
    pub points: String,
    /// Of the notification service.
    pub notifications: String,
    /// Of the console.
    pub console: String,
}

/// Kafka's addresses.
#[derive(Debug, Clone, Deserialize)]
pub struct Kafka {
    /// `bootstrap.servers`.
    pub bootstrap: String,
}

/// One process of the stack.
#[derive(Debug, Clone, Deserialize)]
pub struct Process {
    /// Its name, for example `order`.
    pub name: String,
    /// Base URL of its HTTP API.
    pub http: Option<String>,
}

impl Status {
    /// Reads the file that [`STATUS`] names.
    ///
    /// # Errors
    /// The variable is missing, or the file cannot be read.
    pub fn read() -> anyhow::Result<Self> {
        let path = std::env::var(STATUS)
            .with_context(|| format!("{STATUS} is not set: start this by `cargo dev`"))?;
        let bytes = std::fs::read(Path::new(&path)).with_context(|| format!("{path} cannot be read"))?;
        serde_json::from_slice(&bytes).with_context(|| format!("{path} is not a status file"))
    }

    /// Base URL of a service's API.
    ///
    /// # Errors
    /// The service does not run.
    pub fn http(&self, name: &str) -> anyhow::Result<&str> {
        let process = self.processes.iter().find(|p| p.name == name);
        process.and_then(|p| p.http.as_deref()).with_context(|| format!("{name} does not run"))
    }
}
