//! The operator's verbs and what they take.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use reqwest::Url;
use uuid::Uuid;

use super::client::{Client, Failure};
use super::{dlt, fleet};
use crate::letters::Filter;

/// Where the console is, who asks, and how answers look.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Common {
    /// Address of the console.
    #[arg(long, env = "WAYBILL_CONSOLE_URL", default_value = "http://127.0.0.1:8083", global = true)]
    pub(super) url: Url,
    /// Bearer token; of a file with --token-file. A secret.
    #[arg(long, env = "WAYBILL_TOKEN", hide_env_values = true, global = true)]
    pub(super) token: Option<String>,
    /// File that holds the token.
    #[arg(long, env = "WAYBILL_TOKEN_FILE", global = true)]
    pub(super) token_file: Option<PathBuf>,
    /// Print the answer as JSON.
    #[arg(long, global = true)]
    pub(super) json: bool,
}

/// The operator's verbs.
#[derive(Debug, Subcommand)]
pub enum Operate {
    /// Dead letters: find, explain, replay, put away.
    Dlt {
        /// What to do.
        #[command(subcommand)]
        verb: Box<Dlt>,
        /// Where the console is.
        #[command(flatten)]
        common: Common,
    },
    /// Keys whose messages wait behind a failed one.
    Keys {
        /// What to do.
        #[command(subcommand)]
        verb: Keys,
        /// Where the console is.
        #[command(flatten)]
        common: Common,
    },
    /// Durable tasks of the services.
    Tasks {
        /// What to do.
        #[command(subcommand)]
        verb: Tasks,
        /// Where the console is.
        #[command(flatten)]
        common: Common,
    },
    /// Subscriptions of the services.
    Consumers {
        /// What to do.
        #[command(subcommand)]
        verb: Consumers,
        /// Where the console is.
        #[command(flatten)]
        common: Common,
    },
    /// Who did what.
    Audit {
        /// Which acts.
        #[command(flatten)]
        wanted: Audit,
        /// Where the console is.
        #[command(flatten)]
        common: Common,
    },
}

/// Verbs of `dlt`.
#[derive(Debug, Subcommand)]
pub enum Dlt {
    /// Dead letters, newest first.
    List {
        /// Which.
        #[command(flatten)]
        filter: Filter,
        /// Letters at most.
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// Groups of one cause.
    Groups {
        /// Which.
        #[command(flatten)]
        filter: Filter,
    },
    /// One letter, with everything that is known of it.
    Show {
        /// Item id.
        id: Uuid,
    },
    /// Every dead-letter topic: counts, ages, time until retention deletes.
    Stats,
    /// What a replay would send, and what not and why.
    Plan(Selected),
    /// Replay: by a plan that was made, or plan and replay in one.
    Replay(Replay),
    /// Runs, or the progress of one.
    Replays {
        /// Only this run.
        id: Option<Uuid>,
    },
    /// Stop a run at its next record.
    Cancel {
        /// The run.
        id: Uuid,
    },
    /// Put letters away, with a reason.
    Archive(Away),
    /// Bring letters back.
    Restore(Away),
    /// Letters as lines of JSON on stdout.
    Export {
        /// Which.
        #[command(flatten)]
        filter: Filter,
        /// With values; needs the role payload.
        #[arg(long)]
        payload: bool,
        /// Lines at most.
        #[arg(long)]
        limit: Option<u64>,
    },
    /// Letters that were replayed as often as is allowed.
    Loops,
}

/// A selection for an act.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Selected {
    /// Which letters.
    #[command(flatten)]
    pub(super) filter: Filter,
    /// Exactly this one; can be repeated.
    #[arg(long = "id")]
    pub(super) ids: Vec<Uuid>,
    /// Letters at most, those that died first; 100 if absent, and the exit code says when more match.
    #[arg(long)]
    pub(super) limit: Option<i64>,
    /// Everything is meant; needed where nothing narrows the selection.
    #[arg(long)]
    pub(super) all: bool,
}

impl Selected {
    /// Whether nothing narrows it.
    pub(super) fn is_bare(&self) -> bool {
        self.ids.is_empty() && self.filter.is_bare()
    }

    pub(super) fn body(&self) -> serde_json::Value {
        let ids = (!self.ids.is_empty()).then_some(&self.ids);
        serde_json::json!({"filter": self.filter, "ids": ids, "limit": self.limit, "all": self.all})
    }
}

/// A replay.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Replay {
    /// Which letters.
    #[command(flatten)]
    pub(super) selected: Selected,
    /// A plan that was made before, instead of a selection.
    #[arg(long)]
    pub(super) plan: Option<Uuid>,
    /// Yes, everything; needed with --all where nothing narrows the selection.
    #[arg(long)]
    pub(super) yes: bool,
    /// Records a second at most, up to 500.
    #[arg(long, default_value_t = 50)]
    pub(super) rate: i32,
    /// So many records first; the rest only after their outcomes are good.
    #[arg(long, default_value_t = 1)]
    pub(super) canary: i32,
    /// Stop after so many failures.
    #[arg(long, default_value_t = 5)]
    pub(super) stop_after_failures: i32,
    /// The outside was compared with, where a group asks for it.
    #[arg(long)]
    pub(super) acknowledge_reconcile: bool,
    /// Start, and do not wait for the end.
    #[arg(long)]
    pub(super) no_wait: bool,
}

/// Putting away or bringing back.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Away {
    /// Which letters.
    #[command(flatten)]
    pub(super) selected: Selected,
    /// Why; for whoever asks later.
    #[arg(long)]
    pub(super) reason: String,
}

/// Verbs of `keys`.
#[derive(Debug, Subcommand)]
pub enum Keys {
    /// Parked keys.
    List {
        /// Only this service.
        #[arg(long)]
        service: Option<String>,
        /// Source topic.
        #[arg(long)]
        topic: Option<String>,
        /// Consumer group.
        #[arg(long)]
        group: Option<String>,
        /// Keys of each service at most: 50 if absent, up to 500.
        #[arg(long)]
        limit: Option<u32>,
        /// Where the page before says that there is more; needs --service.
        #[arg(long, requires = "service")]
        after: Option<String>,
    },
    /// Let a blocked key go on.
    Release {
        /// Source topic.
        #[arg(long)]
        topic: String,
        /// Consumer group.
        #[arg(long)]
        group: String,
        /// The key, as it is listed.
        #[arg(long)]
        key: String,
        /// The key is listed as base64.
        #[arg(long)]
        base64: bool,
        /// It is listed as keyless: one message without key.
        #[arg(long)]
        keyless: bool,
    },
}

/// Verbs of `tasks`.
#[derive(Debug, Subcommand)]
pub enum Tasks {
    /// Tasks.
    List {
        /// Only this service.
        #[arg(long)]
        service: Option<String>,
        /// pending, running, done, failed or cancelled.
        #[arg(long)]
        status: Option<String>,
        /// Kind.
        #[arg(long)]
        kind: Option<String>,
        /// Order key.
        #[arg(long)]
        key: Option<String>,
        /// Tasks of each service at most: 50 if absent, up to 500.
        #[arg(long)]
        limit: Option<u32>,
        /// Where the page before says that there is more; needs --service.
        #[arg(long, requires = "service")]
        before: Option<String>,
    },
    /// Try a failed task again.
    Retry {
        /// Task.
        id: Uuid,
        /// Only this service.
        #[arg(long)]
        service: Option<String>,
    },
    /// Cancel a task.
    Cancel {
        /// Task.
        id: Uuid,
        /// Only this service.
        #[arg(long)]
        service: Option<String>,
    },
}

/// Verbs of `consumers`.
#[derive(Debug, Subcommand)]
pub enum Consumers {
    /// Every subscription, its breaker and what stands still.
    List,
    /// Go on after too many permanent failures in a row.
    Resume {
        /// Source topic.
        #[arg(long)]
        topic: String,
        /// Consumer group.
        #[arg(long)]
        group: String,
    },
}

/// Which acts.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Audit {
    /// One act, with what it did to each message.
    #[arg(long)]
    pub(super) id: Option<i64>,
    /// Only this verb.
    #[arg(long)]
    pub(super) verb: Option<String>,
    /// Only this person's.
    #[arg(long)]
    pub(super) subject: Option<Uuid>,
    /// Acts at most.
    #[arg(long, default_value_t = 50)]
    pub(super) limit: u32,
}

impl Operate {
    /// Does it. 0: all went well. 1: a record failed, was refused, or is left open. 2: asked wrongly. 3: the console, or
    /// what it needs, cannot be reached.
    pub async fn run(self) -> ExitCode {
        let ended = match self {
            Self::Dlt { verb, common } => dlt::run(Client::new(&common), *verb).await,
            Self::Keys { verb, common } => fleet::keys(Client::new(&common), verb).await,
            Self::Tasks { verb, common } => fleet::tasks(Client::new(&common), verb).await,
            Self::Consumers { verb, common } => fleet::consumers(Client::new(&common), verb).await,
            Self::Audit { wanted, common } => fleet::audit(Client::new(&common), &wanted).await,
        };
        match ended {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::from(1),
            Err(failure) => {
                eprintln!("waybill-console: {failure}");
                ExitCode::from(match failure {
                    Failure::Refused(_) => 1,
                    Failure::Usage(_) => 2,
                    Failure::Unreachable(_) => 3,
                })
            }
        }
    }
}
