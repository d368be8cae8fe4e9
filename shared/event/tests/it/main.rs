//! The contracts as other processes meet them: bytes, fingerprints, and every schema ever published.
#![allow(clippy::unwrap_used, reason = "tests, and their helpers")]

mod codec;
mod evolving;
mod golden;
mod headers;
mod history;
mod identity;
mod rules;
mod samples;
mod trace;
