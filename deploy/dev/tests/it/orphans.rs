//! Whoever is killed, at whatever moment: nothing lives five seconds later, and the next run succeeds.

use std::{fs::Permissions, os::unix::fs::PermissionsExt};

use rustix::process::Signal;

use crate::harness::{Checkout, Foreground, eventually, kill, pause, signal};

const UP: &[&str] = &["up", "--only", "infra"];
const FOREGROUND: &[&str] = &["up", "--only", "infra", "--foreground"];

fn the_next_run_succeeds(checkout: &Checkout) {
    checkout.must(UP);
    checkout.must(&["down"]);
    checkout.nothing_lives("after down");
}

#[test]
fn a_killed_foreground_takes_everything_with_it_at_any_moment() {
    let checkout = Checkout::new();
    // The first of these interrupt initdb and the format of Kafka's folder.
    for milliseconds in [0, 20, 100, 300, 600, 1000] {
        let mut foreground = checkout.spawn(FOREGROUND);
        pause(milliseconds);
        foreground.kill();
        checkout.nothing_lives(&format!("foreground killed after {milliseconds} ms"));
    }
    let mut foreground = checkout.spawn(FOREGROUND);
    checkout.wait_started();
    foreground.kill();
    checkout.nothing_lives("foreground killed when ready");
    the_next_run_succeeds(&checkout);
}

#[test]
fn a_build_that_is_under_way_dies_with_its_foreground_to_the_last_grandchild() {
    let checkout = Checkout::new();
    // Stands for cargo and its compilers: a grandchild in a session of its own, which no signal reaches by itself.
    let cargo = checkout.root().join("cargo");
    std::fs::write(&cargo, "#!/bin/sh\nsetsid sleep 600 &\ntouch building\nsleep 600\n").unwrap();
    std::fs::set_permissions(&cargo, Permissions::from_mode(0o755)).unwrap();
    let mut command = checkout.tool(&["test", "unit"]);
    let mut foreground = Foreground::new(command.env("CARGO", cargo));
    eventually("the build runs", 20, || checkout.root().join("building").is_file());
    foreground.kill();
    checkout.nothing_lives("foreground killed while it builds");
}

#[test]
fn a_killed_supervisor_takes_everything_with_it_at_any_moment() {
    let checkout = Checkout::new();
    for milliseconds in [0, 150, 600, 1200] {
        let mut foreground = checkout.spawn(UP);
        eventually("the supervisor shows itself", 20, || checkout.pid("supervisor") != 0);
        pause(milliseconds);
        kill(checkout.pid("supervisor"));
        assert!(!foreground.wait().success(), "`up` must fail when its supervisor is killed");
        checkout.nothing_lives(&format!("supervisor killed after {milliseconds} ms"));
    }
    checkout.must(UP);
    kill(checkout.pid("supervisor"));
    checkout.nothing_lives("supervisor of a detached stack killed");
    assert!(checkout.status().is_none(), "the guard removes the status of what it killed");
    the_next_run_succeeds(&checkout);
}

#[test]
fn a_killed_guard_is_replaced_and_the_new_one_guards() {
    let checkout = Checkout::new();
    checkout.must(UP);
    let first = checkout.pid("guard");
    kill(first);
    eventually("another guard", 5, || ![0, first].contains(&checkout.pid("guard")));
    kill(checkout.pid("supervisor"));
    checkout.nothing_lives("supervisor killed after the guard was replaced");
}

#[test]
fn foreground_supervisor_and_guard_killed_at_once_leave_nothing() {
    let checkout = Checkout::new();
    let mut foreground = checkout.spawn(FOREGROUND);
    checkout.wait_started();
    for pid in [checkout.pid("guard"), checkout.pid("supervisor"), foreground.pid()] {
        kill(pid);
    }
    foreground.wait();
    checkout.nothing_lives("all killed at once");
    the_next_run_succeeds(&checkout);
}

#[test]
fn a_killed_server_comes_back_under_a_new_pid() {
    let checkout = Checkout::new();
    checkout.must(UP);
    for name in ["postgres", "kafka"] {
        let first = checkout.pid(name);
        kill(first);
        eventually("it is back", 20, || {
            let status = checkout.status().unwrap_or_default();
            let processes = status["processes"].as_array().cloned().unwrap_or_default();
            processes.iter().any(|process| {
                process["name"] == name
                    && process["ready"] == true
                    && process["pid"].as_i64() != Some(first.into())
            })
        });
    }
    checkout.must(&["down"]);
    checkout.nothing_lives("after down");
}

#[test]
fn ctrl_c_stops_everything_in_order() {
    let checkout = Checkout::new();
    let mut foreground = checkout.spawn(FOREGROUND);
    checkout.wait_started();
    signal(foreground.pid(), Signal::INT);
    assert!(foreground.wait().success());
    checkout.nothing_lives("after Ctrl-C");
    let log = std::fs::read_to_string(checkout.root().join(".dev/logs/postgres.log")).unwrap();
    assert!(log.contains("database system is shut down"), "PostgreSQL was not stopped in order: {log}");
}
