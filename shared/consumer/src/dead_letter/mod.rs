//! Dead letters: the record byte for byte, with why and from where, acknowledged before anything else moves.

mod mask;
mod producer;
mod record;

pub(crate) use mask::error_text;
pub(crate) use producer::DeadLetters;
pub use record::VALUE_BYTES;
#[cfg(test)]
pub(crate) use record::sizes_of;
