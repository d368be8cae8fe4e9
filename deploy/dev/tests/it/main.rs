//! The promise that nothing outlives a run, and what the verbs say when they cannot do their work.

mod harness;
mod messages;
mod orphans;
