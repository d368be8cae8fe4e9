//! HTTP: the server and its limits, the frame around every route, problems as answers, queries and bodies as typed
//! values.

mod body;
mod error;
mod fault;
pub mod field;
mod frame;
mod guard;
mod json;
mod limits;
mod media;
mod query;
mod rate;
mod refusal;
mod server;

use std::net::SocketAddr;

use axum::http::HeaderValue;
use axum::http::header::CACHE_CONTROL;
use axum::response::Response;
use clap::Args;
use tokio::net::{TcpListener, TcpSocket};

use crate::ConfigError;

pub use error::ApiError;
pub use frame::{BODY_LIMIT, frame, frame_with};
pub use json::Json;
pub use limits::{HEADER_LIMIT, Limits};
pub use query::{Params, Segment, params};
pub use rate::{RateConfig, RateLimit};
pub use server::{serve, serve_within};

/// Connections that the kernel holds until they are accepted (at most `net.core.somaxconn`). With the usual 128, a burst
/// of some hundred overflows it, and clients hold connections that the server has never seen.
const BACKLOG: u32 = 4096;

/// Where a service listens.
#[derive(Debug, Clone, Args)]
#[group(skip)]
pub struct Config {
    /// Address of the API and the health endpoints.
    #[arg(long, env = "HTTP_LISTEN", default_value = "127.0.0.1:8080")]
    pub http_listen: SocketAddr,
    /// Address of `/metrics`; its own port, so that it can be kept from clients.
    #[arg(long, env = "METRICS_LISTEN", default_value = "127.0.0.1:9080")]
    pub metrics_listen: SocketAddr,
}

/// For `map_response`: nothing on the way may keep the answer. For what is personal, or stale at once.
pub async fn no_store(mut response: Response) -> Response {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Both listeners of a service.
#[derive(Debug)]
pub struct Listeners {
    /// Of the API and the health endpoints.
    pub api: TcpListener,
    /// Of `/metrics`.
    pub metrics: TcpListener,
    /// Address of [`Listeners::api`].
    pub local_addr: SocketAddr,
    /// Address of [`Listeners::metrics`].
    pub metrics_addr: SocketAddr,
}

impl Listeners {
    /// Binds both.
    ///
    /// # Errors
    /// As [`bind`].
    pub async fn bind(config: &Config) -> Result<Self, ConfigError> {
        let api = bind("HTTP_LISTEN", config.http_listen).await?;
        let metrics = bind("METRICS_LISTEN", config.metrics_listen).await?;
        let address =
            |name, listener: &TcpListener| listener.local_addr().map_err(|e| ConfigError::invalid(name, e));
        let (local_addr, metrics_addr) =
            (address("HTTP_LISTEN", &api)?, address("METRICS_LISTEN", &metrics)?);
        Ok(Self { api, metrics, local_addr, metrics_addr })
    }
}

/// Binds an address that setting `name` gives.
///
/// # Errors
/// The address is taken, or not ours; the message names the setting.
pub async fn bind(name: &'static str, address: SocketAddr) -> Result<TcpListener, ConfigError> {
    listen(address).map_err(|e| ConfigError::invalid(name, format_args!("{address}: {e}")))
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // As `TcpListener::bind` does: a restart must not wait for the old connections' last minutes.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}
