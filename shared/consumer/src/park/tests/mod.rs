//! The park against a real PostgreSQL; the batch side is the reference of how a batch transaction uses it.

mod arrivals;
mod dead;
mod drains;
mod fair;
mod handler;
mod operators;
mod order;
mod published;
mod races;
mod replays;
mod support;
