//! What can go wrong, each with a code that never changes.

use thiserror::Error;

/// A schema that this crate refuses, found when the process starts or in the tests.
#[derive(Debug, Error)]
#[error("schema {number} of {topic}: {problem}")]
pub struct SchemaError {
    /// Topic of the schema.
    pub topic: String,
    /// Place in the history, from 1; the number of its file. 0: none of them.
    pub number: usize,
    /// What is wrong, naming record and field.
    pub problem: String,
}

/// An event that cannot be written.
#[derive(Debug, Error)]
pub enum EncodeError {
    /// The struct does not fit its schema: a fault of the program.
    #[error("event does not fit its schema: {0}")]
    Schema(String),
    /// Larger than [`crate::MAX_VALUE_BYTES`].
    #[error("event of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes of the encoded event.
        size: usize,
        /// The limit.
        limit: usize,
    },
}

impl EncodeError {
    /// Stable code for metrics and answers.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Schema(_) => "encode_schema",
            Self::TooLarge { .. } => "encode_too_large",
        }
    }
}

/// Bytes that are no event of the expected type.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// The record has no value (a tombstone). Never made by [`crate::decode`]: for who holds the record.
    #[error("value is null")]
    Null,
    /// The value has no bytes.
    #[error("value is empty")]
    Empty,
    /// The first bytes name no framing known here.
    #[error("unknown framing, value begins with {first:02x?}")]
    UnknownFrame {
        /// At most ten bytes.
        first: Vec<u8>,
    },
    /// The value ends too early.
    #[error("value ends too early, after {0} bytes")]
    Truncated(usize),
    /// Written with a schema that is not in the history embedded here.
    #[error("unknown schema fingerprint {0:016x}")]
    UnknownFingerprint(u64),
    /// The bytes do not fit their schema, or the schema not the struct.
    #[error("malformed value: {0}")]
    Malformed(String),
    /// Bytes are left after the event.
    #[error("{0} bytes after the end of the event")]
    TrailingBytes(usize),
    /// Larger than [`crate::MAX_VALUE_BYTES`]; not looked into.
    #[error("value of {size} bytes is over the limit of {limit}")]
    TooLarge {
        /// Bytes of the value.
        size: usize,
        /// The limit.
        limit: usize,
    },
}

impl DecodeError {
    /// Stable code for headers, metrics and the console.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Null => "decode_null",
            Self::Empty => "decode_empty",
            Self::UnknownFrame { .. } => "decode_unknown_frame",
            Self::Truncated(_) => "decode_truncated",
            Self::UnknownFingerprint(_) => "decode_unknown_schema",
            Self::Malformed(_) => "decode_malformed",
            Self::TrailingBytes(_) => "decode_trailing_bytes",
            Self::TooLarge { .. } => "decode_too_large",
        }
    }

    /// Whether a deployment under way may explain it: transient at first, then dead. All others are final.
    #[must_use]
    pub const fn is_unknown_schema(&self) -> bool {
        matches!(self, Self::UnknownFingerprint(_))
    }
}
