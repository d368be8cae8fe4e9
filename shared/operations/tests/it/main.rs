//! The operators' API over real HTTP and a real database.

mod consumer;
mod keys;
mod scene;
mod server;
mod tasks;
