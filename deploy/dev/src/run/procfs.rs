//! Processes as `/proc` shows them: alive or not, marked or not, and killing what is ours.

use std::{
    fs,
    path::PathBuf,
    process,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

use super::MARKER;
use crate::wait;

/// When a process began, in clock ticks since boot; with the pid it names a process for good.
/// `None` if there is no such process or it is a zombie.
pub(crate) fn start_time(pid: i32) -> Option<u64> {
    parse_start_time(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

fn parse_start_time(stat: &str) -> Option<u64> {
    // The second field is the program's name in brackets and may itself hold brackets and spaces.
    let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

/// Whether the process of that pid and start time lives.
pub(crate) fn is_alive(pid: i32, start: u64) -> bool {
    start_time(pid) == Some(start)
}

/// Sends a signal; a process that is gone is not an error.
pub(crate) fn signal(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid).filter(|pid| pid.as_raw_nonzero().get() > 1) {
        let _ = kill_process(pid, signal);
    }
}

/// What belongs to a run.
#[derive(Debug)]
pub(crate) struct Belongings {
    /// The run's identity, as in the marker.
    pub(crate) run: String,
    /// A process whose current folder is this one belongs too: PostgreSQL's backends overwrite their environment.
    pub(crate) cluster: Option<PathBuf>,
}

impl Belongings {
    /// The pids that belong, without this process.
    pub(crate) fn list(&self) -> Vec<i32> {
        let own = i32::try_from(process::id()).unwrap_or_default();
        let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok())
            .filter(|pid| *pid != own && self.owns(*pid) && start_time(*pid).is_some())
            .collect()
    }

    fn owns(&self, pid: i32) -> bool {
        let marked = fs::read(format!("/proc/{pid}/environ")).is_ok_and(|env| is_marked(&env, &self.run));
        let inside = |cluster: &PathBuf| {
            fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|folder| folder.starts_with(cluster))
        };
        marked || self.cluster.as_ref().is_some_and(inside)
    }

    /// Kills all that belongs, again and again until nothing is left; false if something still is after 10 s.
    pub(crate) fn sweep(&self) -> bool {
        let deadline = Instant::now() + Duration::from_secs(10);
        // A process caught between fork and exec shows its parent's environment: look again a little later.
        let mut quiet = 0;
        while quiet < 3 && Instant::now() < deadline {
            let found = self.list();
            quiet = if found.is_empty() { quiet + 1 } else { 0 };
            for pid in found {
                signal(pid, Signal::KILL);
            }
            wait::pause(Duration::from_millis(if quiet == 0 { 20 } else { 60 }));
        }
        quiet >= 3
    }
}

/// Whether an environment block carries the run in its chain of markers.
fn is_marked(environ: &[u8], run: &str) -> bool {
    environ
        .split(|byte| *byte == 0)
        .filter_map(|entry| entry.strip_prefix(MARKER.as_bytes())?.strip_prefix(b"="))
        .any(|chain| chain.split(|byte| *byte == b':').any(|id| id == run.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_brackets_does_not_confuse_the_start_time() {
        let rest = "S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20";
        assert_eq!(parse_start_time(&format!("7 (a) b) {rest}")), Some(4242));
        assert_eq!(parse_start_time(&format!("7 (a) {}", rest.replacen('S', "Z", 1))), None);
        assert_eq!(parse_start_time("garbage"), None);
    }

    #[test]
    fn this_process_is_alive_under_its_own_start_time_only() {
        let pid = i32::try_from(process::id()).unwrap();
        let start = start_time(pid).unwrap();
        assert!(is_alive(pid, start));
        assert!(!is_alive(pid, start + 1));
    }

    #[test]
    fn every_run_of_the_chain_marks_and_no_other() {
        let environ = b"A=1\0WAYBILL_DEV_RUN=one:two\0B=three\0";
        assert!(is_marked(environ, "one") && is_marked(environ, "two"));
        assert!(!is_marked(environ, "three") && !is_marked(environ, "on"));
    }
}
