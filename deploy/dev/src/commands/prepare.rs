//! `prepare`: the cache of checked queries, made from the migrations and the sources.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{ExitCode, Stdio},
    time::SystemTime,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::setup;
use crate::{
    cli::Only,
    infra::{databases::Server, postgres, url},
    layout::{Space, Workspace},
    run::session::Session,
    services::FEATURES,
    status::Status,
    supervise::client::Supervisor,
    ui,
};

/// In this order: services build on what the shared crates create.
const MIGRATIONS: [&str; 7] = [
    "shared/outbox/migrations",
    "shared/consumer/migrations",
    "shared/task/migrations",
    "services/order/migrations",
    "services/point/migrations",
    "services/notification/migrations",
    "services/console/migrations",
];

/// The one database that holds all tables, for checking only.
const DATABASE: &str = "prepare";

/// Writes the cache, or compares it.
pub(crate) fn run(workspace: &Workspace, check: bool) -> Result<ExitCode> {
    let session = Session::begin(&workspace.state(Space::Test))?;
    let result = with_server(&session, workspace, check);
    session.end();
    result
}

fn with_server(session: &Session, workspace: &Workspace, check: bool) -> Result<ExitCode> {
    // A server that is up is used; its own databases are not touched.
    let running = Status::running(&workspace.state(Space::Dev).status()).filter(|status| status.started);
    if let Some(status) = running {
        ui::note(&status.servers());
        return prepare(session, workspace, &status, check);
    }
    setup::servers(session, workspace, Only::Postgres, false)?;
    let (supervisor, status) = Supervisor::start(session, &workspace.state(Space::Test), Only::Postgres)?;
    let result = prepare(session, workspace, &status, check);
    supervisor.stop();
    result
}

fn prepare(session: &Session, workspace: &Workspace, status: &Status, check: bool) -> Result<ExitCode> {
    let admin_url = &status.database.as_ref().context("no database server")?.admin_url;
    let server = Server::new(workspace, status.mode.postgres, admin_url)?;
    server.check(&[DATABASE])?;
    let url = url::with_database(admin_url, DATABASE);
    let step = ui::Step::begin(format!("Applying all migrations to the database {DATABASE}"));
    server.recreate(DATABASE)?;
    migrate(workspace, &url)?;
    step.done();
    let cache = workspace.root.join(".sqlx");
    // Beside the target folder, not in /tmp: sqlx renames its files into place.
    let target = workspace.binaries().join("../sqlx");
    let folder = if check { target.join("check") } else { cache.clone() };
    empty(&folder)?;
    let scratch = target.join("tmp");
    fs::create_dir_all(&scratch).with_context(|| format!("creating {}", scratch.display()))?;
    touch(session, workspace)?;
    ui::heading("Checking every query (cargo check --workspace --all-targets)");
    let mut cargo = session.cargo()?;
    cargo.args(["check", "--workspace", "--all-targets", "--features", FEATURES]);
    cargo.env("DATABASE_URL", url).env("SQLX_OFFLINE", "false");
    cargo.env("SQLX_OFFLINE_DIR", &folder).env("SQLX_TMP", &scratch);
    session.must(&mut cargo)?;
    let made = queries(&folder)?;
    if !check {
        eprintln!("{} .sqlx holds {} queries", ui::tick(), made.len());
        return Ok(ExitCode::SUCCESS);
    }
    let differences = compare(&queries(&cache)?, &made);
    if differences.is_empty() {
        eprintln!("{} .sqlx is fresh ({} queries)", ui::tick(), made.len());
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("{} .sqlx is stale; run: cargo dev prepare", ui::cross());
    differences.iter().for_each(|line| ui::note(line));
    Ok(ExitCode::FAILURE)
}

fn migrate(workspace: &Workspace, url: &str) -> Result<()> {
    for folder in MIGRATIONS {
        let folder = workspace.root.join(folder);
        let entries = fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))?;
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
        files.sort();
        for file in files {
            postgres::apply(url, &file)?;
        }
    }
    Ok(())
}

/// Makes cargo expand the macros again: it does not see that the cache or the database has changed.
fn touch(session: &Session, workspace: &Workspace) -> Result<()> {
    let mut cargo = session.cargo()?;
    cargo.args(["metadata", "--no-deps", "--format-version", "1", "--offline"]).stderr(Stdio::inherit());
    let output = cargo.current_dir(&workspace.root).output().context("cargo metadata")?;
    ensure!(output.status.success(), "cargo metadata failed");
    for source in sources(&serde_json::from_slice(&output.stdout).context("reading cargo metadata")?) {
        let touched =
            File::options().append(true).open(&source).and_then(|file| file.set_modified(SystemTime::now()));
        touched.with_context(|| format!("touching {}", source.display()))?;
    }
    Ok(())
}

/// The root source of every target of every crate that depends on sqlx.
fn sources(metadata: &Value) -> Vec<PathBuf> {
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let uses_sqlx = |package: &Value| list(package, "dependencies").iter().any(|dep| dep["name"] == "sqlx");
    let packages = list(metadata, "packages").into_iter().filter(uses_sqlx);
    let targets = packages.flat_map(|package| list(&package, "targets"));
    targets.filter_map(|target| target["src_path"].as_str().map(PathBuf::from)).collect()
}

fn empty(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    for name in queries(folder)?.into_keys() {
        fs::remove_file(folder.join(&name)).with_context(|| format!("removing {name}"))?;
    }
    Ok(())
}

/// The cached queries by file name; none if there is no folder.
fn queries(folder: &Path) -> Result<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let Ok(entries) = fs::read_dir(folder) else { return Ok(found) };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("query-") && name.ends_with(".json") {
            found.insert(name, fs::read(&path).with_context(|| format!("reading {}", path.display()))?);
        }
    }
    Ok(found)
}

fn compare(cache: &BTreeMap<String, Vec<u8>>, made: &BTreeMap<String, Vec<u8>>) -> Vec<String> {
    let missing =
        made.keys().filter(|name| !cache.contains_key(*name)).map(|name| format!("missing: {name}"));
    let superfluous =
        cache.keys().filter(|name| !made.contains_key(*name)).map(|name| format!("unused: {name}"));
    let changed = made.iter().filter(|(name, text)| cache.get(*name).is_some_and(|old| old != *text));
    missing.chain(superfluous).chain(changed.map(|(name, _)| format!("changed: {name}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_difference_is_told() {
        let of =
            |pairs: &[(&str, &str)]| pairs.iter().map(|(n, t)| ((*n).into(), t.as_bytes().into())).collect();
        let (cache, made) =
            (of(&[("a", "1"), ("b", "1"), ("c", "1")]), of(&[("a", "1"), ("b", "2"), ("d", "1")]));
        assert_eq!(compare(&cache, &made), ["missing: d", "unused: c", "changed: b"]);
        assert!(compare(&cache, &cache).is_empty());
    }

    #[test]
    fn only_crates_with_sqlx_are_touched() {
        let metadata = serde_json::json!({"packages": [
            {"dependencies": [{"name": "sqlx"}], "targets": [{"src_path": "/a/lib.rs"}, {"src_path": "/a/it.rs"}]},
            {"dependencies": [{"name": "serde"}], "targets": [{"src_path": "/b/lib.rs"}]}]});
        assert_eq!(sources(&metadata), [PathBuf::from("/a/lib.rs"), PathBuf::from("/a/it.rs")]);
    }
}
