//! All SQL of the park.
//!
//! Locks, in this order: inbox rows, then the key, or the key, then the inbox row of its head. Both orders meet only
//! where the batch holds the key `for key share`, which a drainer's `for no key update` does not wait for, and where it
//! writes to a key that a replay has opened since its claim, of which a drainer handles nothing before the batch ends.

mod arrivals;
mod ends;
mod heads;
mod operators;

pub(super) use arrivals::{append, append_replays, failed, open, parked};
pub(super) use ends::{
    await_schema, buried, claim, condemn, done, end, hold, hold_at_least, note, replayed, retry, told,
};
pub(super) use heads::{Head, KeyRow, Untold, due, fence, head, lock, untold, wait};
pub(super) use operators::{full, gauge, list, release};
