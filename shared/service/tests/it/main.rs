//! The frame around a service, over real HTTP.

mod auth;
mod flood;
mod frame;
mod gate;
mod jobs;
mod postgres;
mod server;
