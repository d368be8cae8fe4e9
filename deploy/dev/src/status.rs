//! What is running: the file `.dev/status.json`, which scripts read, and the table that people read.

use std::{fs, path::Path};

use anyhow::{Context, Result};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use serde::{Deserialize, Serialize};

use crate::{
    infra::{Source, url},
    run::procfs,
};

/// The whole of a running stack. Field names are a contract with scripts outside.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Status {
    /// The checkout.
    pub(crate) root: String,
    /// The run's mark, as in the environment of its processes.
    pub(crate) run: String,
    /// All that was asked for has been ready at least once.
    pub(crate) started: bool,
    /// Whence PostgreSQL and Kafka come.
    pub(crate) mode: Mode,
    /// The databases; urls include the credentials of the development server.
    pub(crate) database: Option<Database>,
    /// The broker.
    pub(crate) kafka: Option<Kafka>,
    /// What precedes every topic's and group's name.
    pub(crate) topic_prefix: String,
    /// The private key and `jwks.json`.
    pub(crate) jwt_dir: String,
    /// The compose project, in docker mode.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) compose_project: Option<String>,
    /// Every process.
    pub(crate) processes: Vec<Process>,
    /// The folder of the binaries, below the root unless CARGO_TARGET_DIR says otherwise.
    pub(crate) binaries: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Mode {
    pub(crate) postgres: Source,
    pub(crate) kafka: Source,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Database {
    pub(crate) admin_url: String,
    pub(crate) orders: String,
    pub(crate) points: String,
    pub(crate) notifications: String,
    // A status that an older version wrote has none.
    #[serde(default)]
    pub(crate) console: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kafka {
    pub(crate) bootstrap: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) name: String,
    /// `null` for a container or while it is being restarted.
    pub(crate) pid: Option<i32>,
    pub(crate) http: Option<String>,
    pub(crate) metrics: Option<String>,
    pub(crate) log: String,
    pub(crate) ready: bool,
    /// How often the supervisor started it again.
    pub(crate) restarts: u32,
    /// With the pid it names the process for good.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) start_time: Option<u64>,
}

impl Status {
    /// What the file says, whether or not it is still true.
    pub(crate) fn read(file: &Path) -> Option<Self> {
        serde_json::from_slice(&fs::read(file).ok()?).ok()
    }

    /// What the file says if its supervisor lives.
    pub(crate) fn running(file: &Path) -> Option<Self> {
        Self::read(file).filter(|status| status.supervisor().is_some())
    }

    /// The living supervisor's pid and start time.
    pub(crate) fn supervisor(&self) -> Option<(i32, u64)> {
        let process = self.processes.iter().find(|process| process.name == "supervisor")?;
        let (pid, start) = (process.pid?, process.start_time?);
        procfs::is_alive(pid, start).then_some((pid, start))
    }

    /// Replaces the file at once, so that a reader never sees half of it.
    pub(crate) fn write(&self, file: &Path) -> Result<()> {
        let new = file.with_extension("json.new");
        fs::write(&new, self.json()?).with_context(|| format!("writing {}", new.display()))?;
        fs::rename(&new, file).with_context(|| format!("writing {}", file.display()))
    }

    /// The whole as JSON.
    pub(crate) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Which servers the running stack has, in one line.
    pub(crate) fn servers(&self) -> String {
        let postgres = self.database.as_ref().map(|database| url::shown(&database.admin_url));
        let kafka = self.kafka.as_ref().map(|kafka| kafka.bootstrap.as_str()).unwrap_or_default();
        format!(
            "using the stack that is up: PostgreSQL {} ({}), Kafka {kafka} ({})",
            postgres.unwrap_or_default(),
            self.mode.postgres,
            self.mode.kafka
        )
    }

    /// The table for people.
    pub(crate) fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(UTF8_FULL_CONDENSED).set_header(["process", "pid", "state", "address", "log"]);
        for process in &self.processes {
            let pid = process.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            let state = match (process.ready, process.restarts) {
                (true, 0) => "ready".to_owned(),
                (true, n) => format!("ready, restarted {n}×"),
                (false, _) => "not ready".to_owned(),
            };
            table.add_row([&process.name, &pid, &state, &self.address(process), &process.log]);
        }
        format!("{table}\nPostgreSQL: {}, Kafka: {}", self.mode.postgres, self.mode.kafka)
    }

    fn address(&self, process: &Process) -> String {
        match process.name.as_str() {
            "postgres" => {
                self.database.as_ref().map(|database| database.admin_url.clone()).unwrap_or_default()
            }
            "kafka" => self.kafka.as_ref().map(|kafka| kafka.bootstrap.clone()).unwrap_or_default(),
            _ => process.http.clone().unwrap_or_default(),
        }
    }
}
