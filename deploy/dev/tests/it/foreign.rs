//! Servers that others use too: what `cargo dev` has not made is left as it is, whatever its name.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    harness::{Checkout, eventually, kill, pause},
    messages::refused,
};

const DATABASE: &str = "WAYBILL_DATABASE_URL";
const KAFKA: &str = "WAYBILL_KAFKA_BOOTSTRAP";

/// A server of somebody else: that of another checkout, in which nothing but the server was started.
struct Theirs {
    checkout: Checkout,
    url: String,
    bootstrap: String,
}

impl Theirs {
    fn start(only: &str) -> Self {
        let checkout = Checkout::new();
        checkout.must(&["up", "--only", only]);
        let status = checkout.status().unwrap();
        let of = |path: &str| status.pointer(path).and_then(|it| it.as_str()).unwrap_or_default().to_owned();
        Self { url: of("/database/admin_url"), bootstrap: of("/kafka/bootstrap"), checkout }
    }

    fn psql(&self, database: &str, sql: &str) -> String {
        psql(&self.url.replace("/postgres", &format!("/{database}")), sql)
    }

    fn databases(&self) -> String {
        self.psql("postgres", "select string_agg(datname, ' ' order by datname) from pg_database")
    }

    fn end(self) {
        self.checkout.must(&["down"]);
        self.checkout.nothing_lives("after down");
    }
}

fn psql(url: &str, sql: &str) -> String {
    let output = Command::new("psql").args(["-XqAt", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn a_name_that_is_taken_is_refused_with_database_and_variable_and_left_as_it_is() {
    let theirs = Theirs::start("postgres");
    let ours = theirs.checkout.another();
    let before = theirs.databases();
    for (name, verbs) in [
        ("orders", &[&["up"] as &[_], &["up", "--foreground"], &["demo"]] as &[&[_]]),
        ("points", &[&["up"]]),
        ("notifications", &[&["up"]]),
        ("console", &[&["up"]]),
        ("prepare", &[&["prepare"], &["prepare", "--check"]]),
    ] {
        theirs.psql("postgres", &format!("create database {name}"));
        theirs
            .psql(name, "create schema app; create table app.kept (n int); insert into app.kept values (1)");
        for verb in verbs {
            let expected = format!("the name of the database \"{name}\" is taken");
            refused(&ours, verb, &[(DATABASE, &theirs.url), (KAFKA, "127.0.0.1:9")], &expected);
            refused(&ours, verb, &[(DATABASE, &theirs.url), (KAFKA, "127.0.0.1:9")], DATABASE);
        }
        // Also on a server of its own, which people use for databases of theirs.
        if name == "prepare" {
            refused(&theirs.checkout, &["prepare"], &[], "the name of the database \"prepare\" is taken");
        }
        let tables =
            "select string_agg(oid::regclass::text, ' ') from pg_class where relkind = 'r' and oid >= 16384";
        assert_eq!(theirs.psql(name, tables), "app.kept", "{name} was migrated");
        assert_eq!(theirs.psql(name, "select count(*) from app.kept"), "1");
        theirs.psql("postgres", &format!("drop database {name}"));
        assert_eq!(theirs.databases(), before, "something was made beside {name}");
    }
    ours.nothing_lives("after refusals");
    theirs.end();
}

#[test]
fn the_variables_of_other_projects_are_told_and_not_used() {
    let theirs = Theirs::start("postgres");
    let ours = theirs.checkout.another();
    let before = theirs.databases();
    let others = [
        ("DATABASE_URL", theirs.url.as_str()),
        ("KAFKA_BOOTSTRAP", "127.0.0.1:9"),
        ("TOPIC_PREFIX", "theirs."),
        ("PGHOSTADDR", "127.0.0.9"),
        ("PGSERVICE", "theirs"),
    ];
    let told = ours.must_with(&["up", "--only", "infra"], &others);
    for name in ["DATABASE_URL", "KAFKA_BOOTSTRAP", "TOPIC_PREFIX"] {
        assert!(told.contains(&format!("  {name} is set and not used")), "{told}");
    }
    assert!(
        told.starts_with("  PostgreSQL: a process of this checkout's own (WAYBILL_INFRA=native)"),
        "{told}"
    );
    let status = ours.status().unwrap();
    assert_ne!(status["database"]["admin_url"], theirs.url);
    assert_eq!(status["topic_prefix"], "");
    assert_eq!(theirs.databases(), before);
    ours.must(&["down"]);
    theirs.end();
}

#[test]
fn a_role_that_may_not_create_databases_is_named() {
    let theirs = Theirs::start("postgres");
    let ours = theirs.checkout.another();
    theirs.psql("postgres", "create role clerk login password 'hunter2'");
    let url = theirs.url.replace("//waybill@", "//clerk:hunter2@");
    for verb in [&["up"] as &[_], &["demo"], &["prepare"], &["test", "it"], &["chaos"]] {
        let output = ours.run_with(verb, &[(DATABASE, &url), (KAFKA, "127.0.0.1:9")]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{verb:?} should fail");
        assert!(
            told.contains("alter role \"clerk\" createdb") && told.contains(DATABASE),
            "{verb:?}: {told}"
        );
        assert!(!told.contains("hunter2"), "{told}");
    }
    ours.nothing_lives("after refusals");
    theirs.end();
}

/// What a whole stack needs of a checkout: the list of topics, and the binaries as they were built.
fn equip(checkout: &Checkout) -> [(&'static str, String); 2] {
    let (repository, root) = (Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."), checkout.root());
    symlink(repository.join("deploy").canonicalize().unwrap(), root.join("deploy")).unwrap();
    // Cargo would build the workspace a second time for another folder.
    [("CARGO", "true".to_owned()), ("CARGO_TARGET_DIR", target().display().to_string())]
}

fn target() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_waybill-dev")).ancestors().nth(2).unwrap().to_path_buf()
}

/// The relay's verb on topics, by which the other project makes its own and sees whether they are as it made them.
fn topics(theirs: &Theirs, verb: &str) {
    let file = theirs.checkout.root().join("topics.toml");
    let told =
        "[defaults]\npartitions = 1\nreplication = 1\nmin-insync-replicas = 1\ncleanup-policy = \"delete\"
        max-message-bytes = 4096\nretention = \"1h\"\n[topics.\"orders.v1\"]\n";
    fs::write(&file, told).unwrap();
    let mut relay = Command::new(target().join("debug/waybill-relay"));
    relay
        .args(["topics", verb, "--file"])
        .arg(file)
        .env("KAFKA_BOOTSTRAP", &theirs.bootstrap)
        .env_remove("TOPIC_PREFIX");
    let output = relay.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{verb}: {}", String::from_utf8_lossy(&output.stderr));
}

/// How many bytes lie on the topics whose name ends so, by name.
fn written(theirs: &Theirs, name: &str) -> u64 {
    let folders = fs::read_dir(theirs.checkout.root().join(".dev/kafka/data")).unwrap();
    let folders = folders.map(|entry| entry.unwrap().path());
    let of_topic = folders.filter(|path| {
        let folder = path.file_name().unwrap().to_string_lossy().into_owned();
        folder.rsplit_once('-').is_some_and(|(topic, _)| topic == name)
    });
    of_topic.map(|path| fs::metadata(path.join("00000000000000000000.log")).unwrap().len()).sum()
}

#[test]
fn a_stack_on_the_servers_of_others_touches_only_what_it_has_made() {
    let theirs = Theirs::start("infra");
    topics(&theirs, "apply");
    let ours = theirs.checkout.another();
    let equipped = equip(&ours);
    let mut env: Vec<_> = equipped.iter().map(|(name, value)| (*name, value.as_str())).collect();
    env.extend([(DATABASE, theirs.url.as_str()), (KAFKA, theirs.bootstrap.as_str())]);
    // Killed at many moments, it leaves nothing that it would not know again.
    for milliseconds in [0, 100, 200, 300, 500, 1500] {
        let mut command = ours.tool(&["up"]);
        let mut up = crate::harness::Foreground::new(command.envs(env.iter().copied()));
        eventually("the supervisor shows itself", 20, || ours.pid("supervisor") != 0);
        pause(milliseconds);
        kill(ours.pid("supervisor"));
        up.wait();
        ours.nothing_lives("killed");
    }
    let told = ours.must_with(&["up"], &env);
    assert!(told.contains(&format!("because {DATABASE} names it")), "{told}");
    assert!(told.contains(&format!("because {KAFKA} names it")), "{told}");
    let prefix = ours.status().unwrap()["topic_prefix"].as_str().unwrap().to_owned();
    assert!(prefix.len() > 10, "{prefix:?}");
    let told = ours.must_with(&["seed"], &env);
    assert!(told.contains("from the environment"), "{told}");
    eventually("orders are published", 60, || written(&theirs, &format!("{prefix}orders.v1")) > 0);
    assert_eq!(written(&theirs, "orders.v1"), 0, "another project's topic was written");
    topics(&theirs, "check");
    // A third one knows neither; the second knows its own again.
    let third = theirs.checkout.another();
    refused(&third, &["up"], &env, "\"orders\" is taken, it is another checkout's");
    ours.must_with(&["down"], &env);
    ours.must_with(&["up"], &env);
    ours.must(&["down"]);
    ours.nothing_lives("after down");
    theirs.end();
}
