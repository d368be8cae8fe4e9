//! The frame around a service, over real HTTP.

mod auth;
mod frame;
mod postgres;
