//! The consuming services' own API: asked in the operator's name, with the operator's token.

mod act;
mod client;
pub mod contract;
pub(crate) mod http;
pub mod view;

pub(crate) use client::{Fault, Services};
