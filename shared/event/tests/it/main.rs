//! The contracts as other processes meet them: bytes, fingerprints, and every schema ever published.

mod codec;
mod golden;
mod history;
mod identity;
mod rules;
mod samples;
mod trace;
