//! `cargo dev`: sets up, runs, shows and tests the whole of Waybill on one machine.
//!
//! Promises: nothing outside `.dev/` and `target/` is written (Maven keeps its own cache); two checkouts side by
//! side do not collide; whichever `cargo dev` process is killed, nothing it started is alive five seconds later
//! and the next run succeeds without cleaning by hand. Not promised: production use, or more than one machine.
//! The crate stays light (no database, Kafka or async crates), because everybody compiles it first.

mod cli;
mod commands;
mod infra;
mod layout;
mod ports;
mod run;
mod services;
mod status;
mod supervise;
mod ui;
mod wait;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match commands::dispatch(cli::Cli::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("{} {error:#}", ui::cross());
            ExitCode::FAILURE
        }
    }
}
