//! Noise into everything that reads what others wrote: mutations of a corpus, by a seed, for as long as wanted.
//!
//! A target must neither panic nor grow: what it holds after the noise is what it held before, within a bound.

mod http;
mod parsers;

use std::time::{Duration, Instant};

use rand::Rng;
use rand::rngs::StdRng;

use crate::bench::resident_kib;
use crate::chaos::dice;

pub use http::Api;

/// What noise goes into.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// Record headers: identity, trace context, times.
    Headers,
    /// The first bytes of a value.
    Frames,
    /// Avro bytes behind a good frame.
    Avro,
    /// Bodies of `POST /v1/orders`, over HTTP.
    Bodies,
    /// Cursors and other query parameters, over HTTP.
    Cursors,
}

/// What a run showed.
#[derive(Debug)]
pub struct Report {
    /// Inputs tried.
    pub inputs: u64,
    /// Inputs that were taken as good.
    pub taken: u64,
    /// Growth of resident memory, in KiB, of whoever read the noise.
    pub grown_kib: u64,
}

/// Most that a reader may grow, in KiB: allocators and caches settle well below.
pub const MOST_GROWTH_KIB: u64 = 64 * 1024;

/// Noise for a while. `api` is needed for the targets over HTTP.
///
/// # Panics
/// When the reader panics: with the seed and the number of the input.
///
/// # Errors
/// The service over HTTP ended, or answered with a server error.
pub async fn run(target: Target, time: Duration, seed: u64, api: Option<&Api>) -> anyhow::Result<Report> {
    let mut dice = dice(seed);
    let reader = api
        .filter(|_| matches!(target, Target::Bodies | Target::Cursors))
        .map_or(std::process::id(), Api::pid);
    let corpus = match target {
        Target::Bodies => http::bodies(),
        Target::Cursors => http::queries(),
        _ => parsers::corpus(target),
    };
    let (mut inputs, mut taken) = (0, 0);
    // Before it is warm, everything grows.
    let mut before = None;
    let started = Instant::now();
    while started.elapsed() < time {
        let noise = mutate(&mut dice, &corpus);
        let good = match (target, api) {
            (Target::Bodies, Some(api)) => api.body(noise).await?,
            (Target::Cursors, Some(api)) => api.query(&noise).await?,
            (Target::Bodies | Target::Cursors, None) => anyhow::bail!("{target:?} needs the service"),
            _ => parsers::read(target, &noise),
        };
        inputs += 1;
        taken += u64::from(good);
        if before.is_none() && started.elapsed() > time / 4 {
            before = Some(resident_kib(reader)?);
        }
    }
    let after = resident_kib(reader)?;
    Ok(Report { inputs, taken, grown_kib: after.saturating_sub(before.unwrap_or(after)) })
}

/// A seed of the corpus with some of its bytes changed, doubled, cut or exchanged with another seed's.
fn mutate(dice: &mut StdRng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = corpus[dice.random_range(0..corpus.len())].clone();
    for _ in 0..dice.random_range(0..6) {
        let at = dice.random_range(0..=bytes.len());
        let to = (at + dice.random_range(0..16)).min(bytes.len());
        match dice.random_range(0..8) {
            0 if at < bytes.len() => bytes[at] ^= 1 << dice.random_range(0..8),
            1 if at < bytes.len() => bytes[at] = dice.random(),
            2 => bytes.insert(at, dice.random()),
            3 => drop(bytes.drain(at..to)),
            4 => bytes.truncate(at),
            5 => {
                let piece = bytes[at..to].to_vec();
                let times = dice.random_range(1..200);
                bytes.splice(at..at, piece.iter().copied().cycle().take(piece.len() * times));
            }
            6 => {
                let other = &corpus[dice.random_range(0..corpus.len())];
                let from = dice.random_range(0..=other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
            _ => {
                // Numbers at the edges of their types, and what parsers stumble over.
                const ODD: [&[u8]; 9] = [
                    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
                    b"\x00",
                    b"\xff",
                    b"9223372036854775808",
                    b"-1",
                    b"1e999",
                    b"\"",
                    b"\\u0000",
                    "\u{10ffff}".as_bytes(),
                ];
                bytes.splice(at..to, ODD[dice.random_range(0..ODD.len())].iter().copied());
            }
        }
        bytes.truncate(60_000);
    }
    bytes
}
