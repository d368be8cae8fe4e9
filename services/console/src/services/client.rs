//! Asking the services.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use futures::future::join_all;
use reqwest::{Client, Method, RequestBuilder, Url};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use waybill_service::http::ApiError;

use super::contract::{Check, Checked, Subscription, Subscriptions};
use crate::ServiceAddress;

/// Longest wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Longest part of an answer that goes into an error, in bytes.
const MAX_DETAIL: usize = 300;

/// The services, and how to reach them. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Services {
    client: Client,
    addresses: Arc<[ServiceAddress]>,
}

/// A field at fault, as a service tells it. Its parameters and members have the names that they have here.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct FieldFault {
    pointer: String,
    detail: String,
}

/// A question without an answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Fault {
    /// It does not answer, or not what it should.
    #[error("service {service} cannot be reached: {detail}")]
    Unreachable { service: String, detail: String },
    /// It refuses.
    #[error("service {service} refuses with {status}: {detail}")]
    Refused { service: String, status: StatusCode, detail: String, errors: Vec<FieldFault> },
    /// There is none of that name.
    #[error("there is no service {0:?} in CONSOLE_SERVICES")]
    Unknown(String),
    /// None has the subscription.
    #[error("no service consumes {topic} as {group}")]
    NoConsumer { topic: String, group: String },
}

impl Fault {
    /// The service's status, when it has answered.
    pub(crate) const fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }
}

impl From<Fault> for ApiError {
    fn from(fault: Fault) -> Self {
        let text = fault.to_string();
        match fault {
            Fault::Refused { status: StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED, .. } => {
                Self::new(StatusCode::FORBIDDEN, "forbidden", text)
            }
            // The caller's fault, and told as such: what was asked for was passed on as it came.
            Fault::Refused { status: StatusCode::BAD_REQUEST, errors, .. } => {
                let problem = Self::new(StatusCode::BAD_REQUEST, "validation-failed", text);
                errors
                    .into_iter()
                    .fold(problem, |problem, fault| problem.pointer(fault.pointer, fault.detail))
            }
            Fault::Unreachable { .. } => Self::new(StatusCode::BAD_GATEWAY, "service-unreachable", text),
            Fault::Refused { .. } => Self::new(StatusCode::BAD_GATEWAY, "service-refused", text),
            Fault::Unknown(_) => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown-name", text)
                .pointer("/service", "must be one of CONSOLE_SERVICES"),
            Fault::NoConsumer { .. } => Self::new(StatusCode::UNPROCESSABLE_ENTITY, "unknown-name", text)
                .pointer("/topic", "must be a topic that a service consumes, as the group that is given")
                .pointer("/group", "must be a group that consumes the topic"),
        }
    }
}

impl Services {
    pub(crate) fn new(addresses: Vec<ServiceAddress>) -> Result<Self, reqwest::Error> {
        let client = Client::builder().no_proxy().timeout(TIMEOUT).build()?;
        Ok(Self { client, addresses: addresses.into() })
    }

    /// Every service, or the one of that name.
    pub(crate) fn named(&self, name: Option<&str>) -> Result<Vec<&ServiceAddress>, Fault> {
        let found: Vec<_> =
            self.addresses.iter().filter(|service| name.is_none_or(|name| service.name == name)).collect();
        match name {
            Some(name) if found.is_empty() => Err(Fault::Unknown(name.to_owned())),
            _ => Ok(found),
        }
    }

    /// What each service subscribes to.
    pub(crate) async fn consumers(&self, token: &str) -> Vec<(String, Result<Vec<Subscription>, Fault>)> {
        let ask = |service: &ServiceAddress| {
            let (service, token) = (service.clone(), token.to_owned());
            async move {
                let asked = self.get::<Subscriptions>(&service, "/internal/consumer", &[], &token).await;
                (service.name, asked.map(|answer| answer.subscriptions))
            }
        };
        join_all(self.addresses.iter().map(ask)).await
    }

    /// The service that consumes a topic as a group; names without prefix.
    pub(crate) async fn consumer_of(
        &self,
        topic: &str,
        group: &str,
        token: &str,
    ) -> Result<ServiceAddress, Fault> {
        let mut fault = None;
        for (name, subscriptions) in self.consumers(token).await {
            match subscriptions {
                Ok(list) if list.iter().any(|s| s.topic == topic && s.group == group) => {
                    let found = self.addresses.iter().find(|service| service.name == name);
                    return found.cloned().ok_or(Fault::Unknown(name));
                }
                Ok(_) => {}
                Err(error) => fault = Some(error),
            }
        }
        // The one that does not answer may be the one.
        Err(fault.unwrap_or_else(|| Fault::NoConsumer { topic: topic.to_owned(), group: group.to_owned() }))
    }

    /// What a service knows of some messages.
    pub(crate) async fn check(&self, service: &str, check: &Check, token: &str) -> Result<Checked, Fault> {
        let found = self.addresses.iter().find(|address| address.name == service);
        let service = found.ok_or_else(|| Fault::Unknown(service.to_owned()))?;
        self.post(service, "/internal/consumer/check", check, token).await
    }

    pub(crate) async fn get<T: DeserializeOwned>(
        &self,
        service: &ServiceAddress,
        path: &str,
        query: &[(&str, String)],
        token: &str,
    ) -> Result<T, Fault> {
        let request = self.client.request(Method::GET, url(service, path)).query(query);
        answer(service, request, token).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        service: &ServiceAddress,
        path: &str,
        body: &impl Serialize,
        token: &str,
    ) -> Result<T, Fault> {
        let request = self.client.request(Method::POST, url(service, path)).json(body);
        answer(service, request, token).await
    }
}

fn url(service: &ServiceAddress, path: &str) -> Url {
    let mut url = service.url.clone();
    let base = url.path().trim_end_matches('/').to_owned();
    url.set_path(&format!("{base}{path}"));
    url
}

async fn answer<T: DeserializeOwned>(
    service: &ServiceAddress,
    request: RequestBuilder,
    token: &str,
) -> Result<T, Fault> {
    let unreachable = |error: reqwest::Error| Fault::Unreachable {
        service: service.name.clone(),
        // Without the URL: it may hold more than others should read.
        detail: error.without_url().to_string(),
    };
    let response = request.bearer_auth(token).send().await.map_err(unreachable)?;
    let status = response.status();
    let body = response.bytes().await.map_err(unreachable)?;
    if !status.is_success() {
        let text = String::from_utf8_lossy(&body);
        let problem = serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default();
        let detail = problem["detail"].as_str().unwrap_or(&text);
        let detail = detail[..detail.floor_char_boundary(MAX_DETAIL)].to_owned();
        let errors = Vec::deserialize(&problem["errors"]).unwrap_or_default();
        return Err(Fault::Refused { service: service.name.clone(), status, detail, errors });
    }
    serde_json::from_slice(&body).map_err(|error| Fault::Unreachable {
        service: service.name.clone(),
        detail: format!("its answer is not understood: {error}"),
    })
}
