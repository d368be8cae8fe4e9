//! All SQL of the park.
//!
//! Locks, in this order: inbox rows, then the key, or the key, then the inbox row of its head. Both orders meet only
//! where the batch holds the key `for key share`, which a drainer's `for no key update` does not wait for.

mod arrivals;
mod ends;
mod heads;
mod operators;

pub(super) use arrivals::{append, append_replays, open, parked};
pub(super) use ends::{await_schema, buried, claim, condemn, done, end, hold, note, replayed, retry, told};
pub(super) use heads::{Head, KeyRow, Untold, due, fence, head, lock, untold, wait};
pub(super) use operators::{full, gauge, list, release};
