//! The runtime against real PostgreSQL and Kafka; `harness` needs PostgreSQL only.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod batches;
mod building;
mod codecs;
mod crash_count;
mod dead_letters;
mod delivery;
mod examples;
mod floods;
mod harness;
mod horizon;
mod key_order;
mod measured;
mod noise;
mod other_languages;
mod ownership;
mod pitfalls;
mod pressure;
mod readme;
mod rebalance;
mod refusals;
mod replays;
mod retries;
mod retry_topics;
mod spans;
mod starts;
mod support;
mod suspects;
mod wire;
