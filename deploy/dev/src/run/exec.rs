//! The hidden verb `exec`: becomes a program that the kernel kills when the parent dies.

use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};

/// Asks for the signal, then becomes `command`. Returns only on failure.
pub(crate) fn become_program(parent: i32, command: &[OsString]) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("asking for the parent's death signal")?;
    // The parent may have died before the line above.
    if getppid() != Pid::from_raw(parent) {
        bail!("the parent {parent} is gone");
    }
    let Some((program, args)) = command.split_first() else { bail!("nothing to execute") };
    let error = Command::new(program).args(args).exec();
    Err(error).with_context(|| format!("starting {}", program.display()))
}
