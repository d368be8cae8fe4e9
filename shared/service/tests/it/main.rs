//! The frame around a service, over real HTTP.

mod auth;
mod flood;
mod frame;
mod gate;
mod jobs;
mod migrations;
mod postgres;
mod refusals;
mod server;
