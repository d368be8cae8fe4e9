//! `setup`: what must be there, and how it gets there.

use std::{
    env,
    path::Path,
    process::{Command, Stdio},
};

use anyhow::{Result, bail};

use super::promtool;
use crate::{
    cli::Only,
    infra::{Plan, Source, kafka, postgres},
    layout::{Space, Workspace},
    run::session::Session,
    ui,
};

/// The oldest Java that Kafka 4 runs on.
const JAVA: u32 = 17;

/// What a verb needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need {
    psql: bool,
    postgres: bool,
    kafka: bool,
    jars: bool,
    tests: bool,
}

impl Need {
    /// Compiling only.
    pub(crate) fn build() -> Self {
        Self { psql: false, postgres: false, kafka: false, jars: false, tests: false }
    }

    /// What these servers need.
    pub(crate) fn of(plan: &Plan, workspace: &Workspace) -> Self {
        let (postgres, kafka) = (plan.postgres == Source::Native, plan.kafka == Source::Native);
        Self { psql: true, postgres, kafka, jars: kafka && !kafka::has_jars(workspace), tests: false }
    }
}

impl Need {
    /// The same, and what only tests use.
    pub(crate) fn with_tests(self) -> Self {
        Self { tests: true, ..self }
    }
}

/// Something that is missing.
#[derive(Debug, PartialEq)]
struct Missing {
    what: &'static str,
    /// Debian's package; the last that exists there is taken.
    packages: &'static [&'static str],
    optional: bool,
}

fn missing(need: Need) -> Vec<Missing> {
    let java = need.kafka && java_version().is_none_or(|version| version < JAVA);
    let setpriv = need.postgres && postgres::needs_other_user() && !found("setpriv");
    // (whether it is missing, what it is, packages in order of preference, whether one can do without)
    let all = [
        (!found("cc") && !found("gcc"), "a C compiler", &["gcc"] as &[_], false),
        (!Path::new("/usr/include/stdio.h").is_file(), "the C library's headers", &["libc6-dev"], false),
        (
            !found("c++") && !found("g++"),
            "a C++ compiler (librdkafka's configure wants one)",
            &["g++"],
            false,
        ),
        (!found("make"), "make (builds librdkafka)", &["make"], false),
        (!found("pkg-config"), "pkg-config", &["pkg-config"], false),
        (need.psql && !found("psql"), "psql", &["postgresql-client"], false),
        (need.postgres && postgres::binaries().is_none(), "a PostgreSQL server", &["postgresql"], false),
        (setpriv, "setpriv", &["util-linux"], false),
        (java, "Java 17 or newer (Kafka)", &["openjdk-17-jre-headless", "default-jre-headless"], false),
        (need.jars && !found("mvn"), "Maven (fetches Kafka's jars once)", &["maven"], false),
        (
            need.tests && !succeeds("python3", &["-c", "import ensurepip, venv"]),
            "Python 3 with venv (tests read and write as other languages do)",
            &["python3-venv"],
            false,
        ),
        (
            need.tests && !found("pgbouncer"),
            "PgBouncer (tests put it before PostgreSQL)",
            &["pgbouncer"],
            false,
        ),
        (need.kafka && !found("kcat"), "kcat (reads topics by hand)", &["kcat"], true),
    ];
    let is_missing = all.into_iter().filter(|(missing, ..)| *missing);
    is_missing.map(|(_, what, packages, optional)| Missing { what, packages, optional }).collect()
}

/// The verb: says what was found, and installs or says how.
pub(crate) fn run(workspace: &Workspace) -> Result<()> {
    let session = Session::begin(&workspace.state(Space::Dev))?;
    let result = Plan::of(workspace, true)
        .and_then(|plan| install(&session, missing(Need::of(&plan, workspace).with_tests())));
    if result.is_ok() {
        promtool::provide(&session, workspace);
    }
    session.end();
    result?;
    eprintln!("{} everything needed is there", ui::tick());
    Ok(())
}

/// What every verb begins with that uses servers: says which and why, and has what they need.
pub(crate) fn servers(session: &Session, workspace: &Workspace, only: Only, tests: bool) -> Result<Plan> {
    let with_kafka = only != Only::Postgres;
    let plan = Plan::of(workspace, with_kafka)?;
    plan.tell(with_kafka);
    let need = Need::of(&plan, workspace);
    ensure(session, if tests { need.with_tests() } else { need })?;
    Ok(plan)
}

/// The quiet form for the verbs that need something.
pub(crate) fn ensure(session: &Session, need: Need) -> Result<()> {
    let missing: Vec<_> = missing(need).into_iter().filter(|missing| !missing.optional).collect();
    install(session, missing)
}

fn install(session: &Session, missing: Vec<Missing>) -> Result<()> {
    if missing.is_empty() {
        return Ok(());
    }
    for missing in &missing {
        ui::note(&format!("missing{}: {}", if missing.optional { " (optional)" } else { "" }, missing.what));
    }
    let is_needed = missing.iter().any(|missing| !missing.optional);
    let debian = Path::new("/etc/debian_version").is_file() && found("apt-get");
    if !debian {
        let names: Vec<_> = missing.iter().map(|missing| missing.packages.join(" or ")).collect();
        say(&format!("install these (Debian's names): {}", names.join(", ")), is_needed)
    } else if !rustix::process::geteuid().is_root() {
        let names = packages(&missing).join(" ");
        say(&format!("run: sudo apt-get update && sudo apt-get install -y {names}"), is_needed)
    } else {
        apt(session, &missing, is_needed)
    }
}

fn say(how: &str, is_needed: bool) -> Result<()> {
    if is_needed {
        bail!("{how}");
    }
    ui::note(how);
    Ok(())
}

fn apt(session: &Session, missing: &[Missing], is_needed: bool) -> Result<()> {
    ui::heading("apt-get update");
    // A mirror that cannot be reached need not matter: the lists may be there.
    let _ = session.run(quiet_apt(&mut session.program("apt-get")?).arg("update"))?;
    let names = packages(missing);
    ui::heading(&format!("apt-get install {}", names.join(" ")));
    let mut command = session.program("apt-get")?;
    let status = session
        .run(quiet_apt(&mut command).args(["install", "-y", "--no-install-recommends"]).args(&names))?;
    if !status.success() && is_needed {
        bail!("apt-get failed ({status}); run by hand: apt-get install -y {}", names.join(" "));
    }
    Ok(())
}

fn quiet_apt(command: &mut Command) -> &mut Command {
    command.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).arg("-qq")
}

/// The first package of each that this release has.
fn packages(missing: &[Missing]) -> Vec<&'static str> {
    let pick = |names: &'static [&'static str]| {
        let there = names.iter().find(|name| succeeds("apt-cache", &["show", "--no-all-versions", name]));
        there.or(names.last()).copied()
    };
    missing.iter().filter_map(|missing| pick(missing.packages)).collect()
}

pub(crate) fn found(program: &str) -> bool {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|dir| dir.join(program).is_file())
}

fn succeeds(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

fn java_version() -> Option<u32> {
    let output = Command::new("java").arg("-version").stdin(Stdio::null()).output().ok()?;
    parse_java(&String::from_utf8_lossy(&output.stderr))
}

fn parse_java(text: &str) -> Option<u32> {
    let version = text.split('"').nth(1)?;
    let mut parts = version.split(|c: char| !c.is_ascii_digit());
    match parts.next()?.parse().ok()? {
        // Up to Java 8 the number is the second.
        1 => parts.next()?.parse().ok(),
        major => Some(major),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_java_versions_are_understood() {
        assert_eq!(parse_java("openjdk version \"17.0.15\" 2025-04-15"), Some(17));
        assert_eq!(parse_java("java version \"1.8.0_292\""), Some(8));
        assert_eq!(parse_java("openjdk version \"25\" 2025-09-16"), Some(25));
        assert_eq!(parse_java("no java"), None);
    }
}
