//! The operators' HTTP API of a consuming service, below `/internal`, as the console calls it.
//!
//! **Promises.** The same routes, bodies and refusals in every service that mounts it. Looking needs the role `view`,
//! payloads `payload`, changing `act`; customers are refused. A fault names its field. What is read is bounded: pages,
//! bodies and the number of messages. Whoever changes something is logged by subject, never with a key or a payload.
//!
//! **Does not promise.** Breaker, blocked partitions and [`resume`](consumer) are of the process that answers: with
//! several instances ask each. It keeps no audit; that is the console's.

#![warn(missing_docs)]

pub mod api;
mod caller;
pub mod consumer;
mod openapi;
pub mod tasks;

pub use openapi::described;

/// Largest bodies of these routes, for `waybill_service::http::frame_with`: values of messages are sent to be checked,
/// and one alone may have a mebibyte.
pub const BODIES: &[(&str, usize)] = &[(consumer::CHECK, 8 * 1024 * 1024)];
