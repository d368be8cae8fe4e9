//! What the verbs say when they cannot do their work.

use crate::harness::{Checkout, eventually};

pub(crate) fn refused(checkout: &Checkout, args: &[&str], env: &[(&str, &str)], expected: &str) {
    let mut command = checkout.tool(args);
    let output = command.envs(env.iter().copied()).output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{args:?} should fail");
    assert!(told.contains(expected), "{args:?} says {told:?}, not {expected:?}");
}

#[test]
fn what_cannot_be_reached_or_understood_is_named() {
    let checkout = Checkout::new();
    let up = ["up", "--only", "infra"];
    refused(&checkout, &["status"], &[], "not up");
    refused(&checkout, &["status", "--json"], &[], "not up");
    refused(&checkout, &["logs", "nobody"], &[], "no log");
    refused(&checkout, &["seed"], &[], "not up");
    refused(&checkout, &["soak"], &[], "unrecognized subcommand");
    refused(&checkout, &["token", "--customer", "me"], &[], "invalid value 'me'");
    refused(&checkout, &up, &[("WAYBILL_INFRA", "podman")], "auto, native or docker");
    refused(
        &checkout,
        &up,
        &[("WAYBILL_DATABASE_URL", "mysql://h/d")],
        "WAYBILL_DATABASE_URL must look like",
    );
    let (database, kafka) =
        (("WAYBILL_DATABASE_URL", "postgres://x@127.0.0.1:9/y"), ("WAYBILL_KAFKA_BOOTSTRAP", "127.0.0.1:9"));
    refused(&checkout, &up, &[database, kafka], "WAYBILL_DATABASE_URL: the server cannot be used");
    checkout.nothing_lives("after refusals");
}

#[test]
fn an_unreachable_broker_is_named_and_the_rest_is_stopped() {
    let checkout = Checkout::new();
    refused(
        &checkout,
        &["up", "--only", "infra"],
        &[("WAYBILL_KAFKA_BOOTSTRAP", "127.0.0.1:9")],
        "WAYBILL_KAFKA_BOOTSTRAP: no broker can be reached",
    );
    checkout.nothing_lives("after the refusal");
}

#[test]
fn a_second_up_says_that_the_first_is_under_way_or_up() {
    let checkout = Checkout::new();
    let mut first = checkout.spawn(&["up", "--only", "infra"]);
    eventually("the first has the lock", 20, || checkout.pid("supervisor") != 0);
    refused(&checkout, &["up", "--only", "infra"], &[], "another `cargo dev` is just starting");
    assert!(first.wait().success());
    let second = checkout.run(&["up", "--only", "infra"]);
    assert!(second.status.success() && String::from_utf8_lossy(&second.stderr).contains("already up"));
    checkout.must(&["down"]);
    checkout.nothing_lives("after down");
}
