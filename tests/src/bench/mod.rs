//! Measurements of the real binaries, as ratios and quantiles of one run. Machines are noisy: what two runs show may
//! be compared only when both ran beside the same baseline.

pub mod idle;
pub mod latency;
pub mod lateness;
pub mod outage;
pub mod parked;

use std::time::Duration;

/// Quantiles of a list of durations.
#[derive(Debug, Clone, Copy)]
pub struct Quantiles {
    /// Number of values.
    pub count: usize,
    /// Median.
    pub p50: Duration,
    /// 99 %.
    pub p99: Duration,
    /// Largest.
    pub max: Duration,
}

impl Quantiles {
    /// Quantiles of the values; zero when there are none.
    pub fn of(mut values: Vec<Duration>) -> Self {
        values.sort_unstable();
        let at = |share: f64| {
            // Nearest rank.
            let rank = (values.len() as f64 * share).ceil() as usize;
            values.get(rank.saturating_sub(1)).copied().unwrap_or_default()
        };
        Self { count: values.len(), p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

impl std::fmt::Display for Quantiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |d: Duration| d.as_secs_f64() * 1000.0;
        write!(
            f,
            "p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms ({} values)",
            ms(self.p50),
            ms(self.p99),
            ms(self.max),
            self.count
        )
    }
}

/// Microseconds as the database gives them.
pub(crate) fn micros(values: Vec<i64>) -> Vec<Duration> {
    values.into_iter().map(|us| Duration::from_micros(us.max(0).unsigned_abs())).collect()
}

/// CPU time that a process has used.
///
/// # Errors
/// The process has ended.
pub(crate) fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name in parentheses may hold spaces; utime and stime are the 12th and 13th field after it.
    let fields: Vec<&str> =
        stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks = |n: usize| fields.get(n).and_then(|f| f.parse::<u64>().ok()).unwrap_or(0);
    Ok(Duration::from_millis((ticks(11) + ticks(12)) * 1000 / rustix::param::clock_ticks_per_second()))
}

/// Resident memory of a process, in KiB.
///
/// # Errors
/// The process has ended.
pub(crate) fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).and_then(|n| n.parse().ok());
    kib.ok_or_else(|| anyhow::anyhow!("no VmRSS of process {pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_nearest_ranks() {
        let q = Quantiles::of((1..=100).rev().map(Duration::from_millis).collect());
        assert_eq!(
            (q.p50, q.p99, q.max),
            (Duration::from_millis(50), Duration::from_millis(99), Duration::from_millis(100))
        );
        assert_eq!(Quantiles::of(Vec::new()).max, Duration::ZERO);
    }

    #[test]
    fn the_own_process_uses_time_and_memory() {
        let pid = std::process::id();
        assert!(cpu_time(pid).is_ok() && resident_kib(pid).is_ok_and(|kib| kib > 100));
    }
}
