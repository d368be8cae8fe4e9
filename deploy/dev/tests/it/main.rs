//! The promises that nothing outlives a run and that nothing of others is touched, and what the verbs say when they
//! cannot do their work.

// Clippy knows only functions marked as tests; all of this binary is one.
#![allow(clippy::unwrap_used)]

mod foreign;
mod harness;
mod messages;
mod orphans;
