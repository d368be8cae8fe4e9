//! Ports on the loopback address: the documented one if free, else one of a range outside the kernel's own.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, TcpListener},
    path::PathBuf,
};

use anyhow::{Context, Result, bail};

/// Below the range from which Linux takes ports of outgoing connections, so that no client sits on one by chance.
const RANGE: std::ops::Range<u16> = 20_000..32_000;

/// Ports by name, remembered between runs.
#[derive(Debug)]
pub(crate) struct Ports {
    file: PathBuf,
    known: BTreeMap<String, u16>,
    chosen: Vec<u16>,
    start: u16,
}

impl Ports {
    /// Reads what is remembered; `seed` spreads checkouts over the range.
    pub(crate) fn load(file: PathBuf, seed: u32) -> Self {
        // A damaged file only costs new ports.
        let known =
            fs::read(&file).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
        let span = u32::from(RANGE.end - RANGE.start);
        let start = RANGE.start + u16::try_from(seed % span).unwrap_or(0);
        Self { file, known, chosen: Vec::new(), start }
    }

    /// The port of `name`: the remembered one, else the documented one, else any, whichever is free first.
    /// With a `companion`, the port this much above must be free too.
    pub(crate) fn choose(
        &mut self,
        name: &str,
        documented: Option<u16>,
        companion: Option<u16>,
    ) -> Result<u16> {
        let remembered = self.known.get(name).copied();
        let range = (self.start..RANGE.end).chain(RANGE.start..self.start);
        let free = |port: &u16, chosen: &[u16]| {
            [Some(*port), companion.map(|above| port + above)]
                .into_iter()
                .flatten()
                .all(|port| !chosen.contains(&port) && is_free(port))
        };
        let found =
            remembered.into_iter().chain(documented).chain(range).find(|port| free(port, &self.chosen));
        let Some(port) = found else { bail!("no free port between {} and {}", RANGE.start, RANGE.end) };
        self.chosen.push(port);
        self.chosen.extend(companion.map(|above| port + above));
        self.known.insert(name.to_owned(), port);
        Ok(port)
    }

    /// Remembers the choice.
    pub(crate) fn save(&self) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.known)?;
        fs::write(&self.file, text).with_context(|| format!("writing {}", self.file.display()))
    }
}

fn is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_remembered_and_chosen_anew_when_taken() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ports.json");
        let mut ports = Ports::load(file.clone(), 7);
        let first = ports.choose("kafka", None, None).unwrap();
        ports.save().unwrap();
        assert_eq!(Ports::load(file.clone(), 7).choose("kafka", None, None).unwrap(), first);
        let _holder = TcpListener::bind((Ipv4Addr::LOCALHOST, first)).unwrap();
        assert_ne!(Ports::load(file, 7).choose("kafka", None, None).unwrap(), first);
    }

    #[test]
    fn two_names_and_a_companion_never_share_a_port() {
        let dir = tempfile::tempdir().unwrap();
        let mut ports = Ports::load(dir.path().join("ports.json"), 11);
        let a = ports.choose("a", None, Some(1000)).unwrap();
        let b = ports.choose("b", Some(a), None).unwrap();
        let c = ports.choose("c", Some(a + 1000), None).unwrap();
        assert!(a != b && b != c && c != a && c != a + 1000);
    }

    #[test]
    fn a_damaged_file_only_costs_new_ports() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("ports.json");
        fs::write(&file, "{").unwrap();
        assert!(Ports::load(file, 1).choose("a", None, None).is_ok());
    }
}
