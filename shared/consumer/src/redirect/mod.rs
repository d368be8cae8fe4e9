//! Retries, dead letters and outcomes of replays: a record goes on byte for byte, with why and from where, and is
//! acknowledged before anything else moves.

mod mask;
mod producer;
mod record;

pub(crate) use mask::error_text;
pub(crate) use producer::Publisher;
pub use record::VALUE_BYTES;
#[cfg(test)]
pub(crate) use record::sizes_of;
