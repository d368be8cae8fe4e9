//! `logs`: the end of the logs, and what is appended.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom, Write, stdout},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use crate::{
    cli,
    layout::{Space, Workspace},
    wait,
};

/// Prints and perhaps follows.
pub(crate) fn run(workspace: &Workspace, args: &cli::Logs) -> Result<()> {
    let folder = workspace.state(Space::Dev).logs();
    let mut logs = find(&folder)?;
    if let Some(name) = &args.name {
        let known = logs.keys().cloned().collect::<Vec<_>>().join(", ");
        logs.retain(|log, _| log == name);
        if logs.is_empty() {
            bail!("no log named {name}; there are: {}", if known.is_empty() { "none yet" } else { &known });
        }
    }
    let single = logs.len() == 1;
    let mut followed: Vec<Followed> = Vec::new();
    for (name, path) in logs {
        let prefix = if single { String::new() } else { format!("{name:>12} │ ") };
        followed.push(Followed::begin(prefix, path, args.lines)?);
    }
    if !args.follow {
        return Ok(());
    }
    loop {
        wait::pause(Duration::from_millis(200));
        for log in &mut followed {
            log.more()?;
        }
    }
}

fn find(folder: &Path) -> Result<BTreeMap<String, PathBuf>> {
    let Ok(entries) = fs::read_dir(folder) else { bail!("there are no logs yet in {}", folder.display()) };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let logs = paths.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    Ok(logs.filter_map(|path| Some((path.file_stem()?.to_str()?.to_owned(), path))).collect())
}

#[derive(Debug)]
struct Followed {
    prefix: String,
    path: PathBuf,
    offset: u64,
}

impl Followed {
    fn begin(prefix: String, path: PathBuf, lines: usize) -> Result<Self> {
        let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let log = Self { prefix, path, offset: text.len() as u64 };
        log.print(last(&String::from_utf8_lossy(&text), lines))?;
        Ok(log)
    }

    fn more(&mut self) -> Result<()> {
        // A log that has become shorter is that of the next run.
        let Ok(mut file) = File::open(&self.path) else { return Ok(()) };
        if file.metadata()?.len() < self.offset {
            self.offset = 0;
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        // Half a line waits for its other half.
        let Some(end) = text.iter().rposition(|byte| *byte == b'\n') else { return Ok(()) };
        self.offset += end as u64 + 1;
        self.print(&String::from_utf8_lossy(&text[..=end]))
    }

    fn print(&self, text: &str) -> Result<()> {
        let mut out = stdout().lock();
        let mut write = || text.lines().try_for_each(|line| writeln!(out, "{}{line}", self.prefix));
        match write() {
            // `logs | head` is no failure.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
            other => other.context("writing to stdout"),
        }
    }
}

fn last(text: &str, lines: usize) -> &str {
    let ends = text.trim_end_matches('\n').rmatch_indices('\n');
    ends.map(|(at, _)| at + 1).nth(lines.saturating_sub(1)).map_or(text, |from| &text[from..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_are_counted_without_the_final_newline() {
        assert_eq!(last("a\nb\nc\n", 2), "b\nc\n");
        assert_eq!(last("a\nb", 5), "a\nb");
        assert_eq!(last("", 5), "");
    }
}
