//! The promise that nothing outlives a run, and what the verbs say when they cannot do their work.

// Clippy knows only functions marked as tests; all of this binary is one.
#![allow(clippy::unwrap_used)]

mod harness;
mod messages;
mod orphans;
