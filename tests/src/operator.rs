//! The console's command line, as an operator types it.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::Context;
use serde_json::Value;
use tokio::process::Command;
use uuid::Uuid;
use waybill_testkit::jwt::Issuer;
use waybill_testkit::process::binaries;

/// One person with a token.
#[derive(Debug, Clone)]
pub struct Operator {
    /// Who; the audit names it.
    pub subject: Uuid,
    binary: PathBuf,
    url: String,
    token: String,
}

/// What a command said.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

impl Ran {
    /// Its output as JSON.
    ///
    /// # Errors
    /// It is none; with all that was said.
    pub fn json(&self) -> anyhow::Result<Value> {
        serde_json::from_str(&self.out).with_context(|| format!("no JSON in {self:?}"))
    }
}

impl Operator {
    /// A fresh person with these roles (`view`, `payload`, `act`), at the console of this address.
    pub fn new(issuer: &Issuer, url: &str, roles: &[&str]) -> Self {
        let subject = Uuid::now_v7();
        Self::with_token(subject, url, issuer.operator(subject, roles))
    }

    /// Somebody with this token.
    pub fn with_token(subject: Uuid, url: &str, token: String) -> Self {
        Self { subject, binary: binaries().join("waybill-console"), url: url.to_owned(), token }
    }

    /// The command `waybill-console <line>`, its words separated by spaces; killed with its value.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(line.split_whitespace()).kill_on_drop(true).stdin(Stdio::null());
        command.env("WAYBILL_CONSOLE_URL", &self.url).env("WAYBILL_TOKEN", &self.token);
        command
    }

    /// Runs `waybill-console <line>` to its end.
    ///
    /// # Errors
    /// The binary cannot be started.
    pub async fn run(&self, line: &str) -> anyhow::Result<Ran> {
        let output = self.command(line).output().await;
        let output = output.with_context(|| format!("{} cannot be started", self.binary.display()))?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) })
    }

    /// The JSON answer of `waybill-console <line> --json`, whatever its exit code.
    ///
    /// # Errors
    /// The binary cannot be started, or its answer is no JSON.
    pub async fn ask(&self, line: &str) -> anyhow::Result<Value> {
        self.run(&format!("{line} --json")).await?.json()
    }
}
