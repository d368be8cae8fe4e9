//! The console against real PostgreSQL and Kafka. The services' API and the consumers are played.

mod act;
mod binary;
mod cli;
mod consumer;
mod corpus;
mod fixture;
mod index;
mod order;
mod plan;
mod roles;
mod search;
mod services;
mod two;
mod wire;
