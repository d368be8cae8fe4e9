//! Makes the development key and signs development tokens with it. Called by `cargo dev`.

use std::path::PathBuf;

use anyhow::Context;
use clap::Parser;
use uuid::Uuid;
use waybill_testkit::jwt::Issuer;

#[derive(Parser)]
#[command(about = "Development tokens: never trust this key outside a developer's machine")]
enum Command {
    /// Make a key and its key set.
    Keygen {
        /// Leave a key that is there already.
        #[arg(long)]
        keep: bool,
        /// Folder for private.der and jwks.json.
        #[arg(long)]
        dir: PathBuf,
    },
    /// Print a token.
    Sign {
        /// Folder that keygen wrote.
        #[arg(long)]
        dir: PathBuf,
        /// Customer id; a fresh one when missing.
        #[arg(long)]
        customer: Option<Uuid>,
        /// What the token allows.
        #[arg(long, default_value = "customer", value_parser = ["customer", "operator", "service"])]
        scope: String,
        /// What an operator's token allows; can be repeated. Without it, looking only.
        #[arg(long, value_parser = ["view", "payload", "act"])]
        role: Vec<String>,
        /// How long the token is good, for example 12h.
        #[arg(long, default_value = "12h", value_parser = humantime::parse_duration)]
        ttl: std::time::Duration,
    },
}

fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Keygen { dir, keep } if keep && Issuer::open(&dir).is_ok() => Ok(()),
        Command::Keygen { dir, .. } => Issuer::generate(&dir).map(drop),
        Command::Sign { dir, customer, scope, role, ttl } => {
            let issuer = Issuer::open(&dir).context("no development key: run `cargo dev up` first")?;
            let seconds = i64::try_from(ttl.as_secs()).context("--ttl is too long")?;
            let roles: Vec<&str> = role.iter().map(String::as_str).collect();
            let roles = (!roles.is_empty()).then_some(&roles[..]);
            println!("{}", issuer.sign(customer.unwrap_or_else(Uuid::now_v7), &scope, roles, seconds));
            Ok(())
        }
    }
}
