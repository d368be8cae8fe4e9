//! The contracts between the services: what a message is called, how it is written and how it is told apart.
//!
//! Promises: no I/O, no clock except [`MessageId::new`], and no panic on any input from outside. It does not know
//! Kafka or PostgreSQL; the outbox, the relay and the consumer carry these types over them.

pub mod codec;
pub mod event;
pub mod headers;
pub mod id;
pub mod order;
pub mod outcome;
pub mod point;
pub mod time;
pub mod trace;

pub use codec::{Codec, DecodeError, EncodeError, SchemaError, decode, encode};
pub use event::Event;
pub use headers::{Header, Headers};
pub use id::{MessageId, Origin};
pub use order::{Attempt, OrderEvent, OrderItem};
pub use outcome::ReplayOutcome;
pub use point::PointEvent;
pub use trace::TraceContext;

/// Largest value (payload) of a message, in bytes: the `max.message.bytes` of the topics. Larger ones are neither
/// written nor read.
pub const MAX_VALUE_BYTES: usize = 1 << 20;
