//! HTTP: the frame around every route, problems as answers, bodies as typed values.

mod error;
mod frame;
mod json;

use std::net::SocketAddr;

use axum::Router;
use clap::Args;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::ConfigError;

pub use error::ApiError;
pub use frame::{BODY_LIMIT, frame};
pub use json::Json;

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

/// Binds an address that setting `name` gives.
///
/// # Errors
/// The address is taken, or not ours; the message names the setting.
pub async fn bind(name: &'static str, address: SocketAddr) -> Result<TcpListener, ConfigError> {
    TcpListener::bind(address).await.map_err(|e| ConfigError::invalid(name, format_args!("{address}: {e}")))
}

/// Serves until `shutdown`, then lets the requests that run end. The caller bounds the time.
///
/// # Errors
/// The listener failed.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: CancellationToken,
) -> std::io::Result<()> {
    axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await
}
