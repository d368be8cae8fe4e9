//! Topics as code: `relay topics plan|apply|check`.
//!
//! **Promises.** The file is the whole dynamic configuration of its topics: what it does not say is reset, and
//! `plan` shows it before. The partition count of a live topic is never changed. Topics that the file does not
//! name are left alone.

mod cluster;
mod file;
mod plan;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use tokio::time::{Instant, sleep};
use waybill_service::kafka;

pub use cluster::Cluster;
pub use file::{File, Topic};
pub use plan::{Difference, plan};

/// Longest wait for what was applied to show.
const SETTLE: Duration = Duration::from_secs(30);

/// What `relay topics` needs.
#[derive(Debug, Clone, Args)]
pub struct Config {
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

/// Verbs of `relay topics`.
#[derive(Debug, Clone, Subcommand)]
pub enum Verb {
    /// Show what `apply` would create, change and reset.
    Plan(Target),
    /// Create and alter topics until they are as declared.
    Apply(Target),
    /// End with status 1 when a topic is not as declared.
    Check(Target),
}

/// The file and the cluster.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Declaration of the topics.
    #[arg(long, env = "TOPICS_FILE", default_value = "deploy/kafka/topics.toml")]
    pub file: PathBuf,
    /// Section `[profiles.<name>]` that overrides `[defaults]`, for example `production`.
    #[arg(long, env = "TOPICS_PROFILE")]
    pub profile: Option<String>,
    /// Kafka.
    #[command(flatten)]
    pub kafka: kafka::Config,
}

/// Runs a verb.
///
/// # Errors
/// A file that cannot be used, a cluster that does not answer, a partition count that would have to change; for
/// `check`, any difference.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let (Verb::Plan(target) | Verb::Apply(target) | Verb::Check(target)) = &config.verb;
    let topics =
        File::read(&target.file)?.topics(target.profile.as_deref(), target.kafka.topic_prefix.as_str())?;
    let cluster = Cluster::connect(&target.kafka.client_settings()?)?;
    let differences = plan(&topics, &cluster.live(&topics).await?);
    match config.verb {
        Verb::Plan(_) => println!("{}", plan::show(&differences)),
        Verb::Check(_) => {
            println!("{}", plan::show(&differences));
            anyhow::ensure!(differences.is_empty(), "topics are not as {} declares", target.file.display());
        }
        Verb::Apply(_) => {
            println!("{}", plan::show(&differences));
            refuse(&differences)?;
            cluster.apply(&topics, &differences).await?;
            settle(&cluster, &topics).await?;
            println!("{} topics are as declared", topics.len());
        }
    }
    Ok(())
}

/// Nothing is applied when something cannot be.
fn refuse(differences: &[Difference]) -> anyhow::Result<()> {
    let refused: Vec<String> =
        differences.iter().filter(|d| !d.can_be_applied()).map(ToString::to_string).collect();
    anyhow::ensure!(refused.is_empty(), "nothing was applied: {}", refused.join("; "));
    Ok(())
}

/// Waits until the cluster shows every topic as declared, each partition with a leader.
async fn settle(cluster: &Cluster, topics: &[Topic]) -> anyhow::Result<()> {
    let deadline = Instant::now() + SETTLE;
    loop {
        let differences = plan(topics, &cluster.live(topics).await?);
        if differences.is_empty() {
            return Ok(());
        }
        anyhow::ensure!(Instant::now() < deadline, "applied, but not seen yet: {}", plan::show(&differences));
        sleep(Duration::from_millis(200)).await;
    }
}
