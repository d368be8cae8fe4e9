//! Routes that pass on to the services: consumers, parked keys, tasks.

use axum::Json;
use axum::extract::State as Held;
use axum::http::StatusCode;
use futures::future::join_all;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use waybill_service::auth::Role;
use waybill_service::http::{self, ApiError};

use super::contract::{Key, Keys, Subscription, Tasks};
use super::view::{Merged, Release, Resume, Said};
use super::{Fault, Services};
use crate::ServiceAddress;
use crate::api::{Api, Operator, Params, Segment};
use crate::audit::{self, Entry};

/// `/v1/consumers`, `/v1/keys`, `/v1/tasks`.
pub(crate) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(consumers))
        .routes(routes!(resume))
        .routes(routes!(keys))
        .routes(routes!(release))
        .routes(routes!(tasks))
        .routes(routes!(task))
}

/// Every subscription of every service
///
/// With its breaker, its parked keys, and what stands still. A service that does not answer is shown as such.
#[utoipa::path(get, path = "/v1/consumers", tag = "services", responses((status = 200, description = "By service", body = Merged<Subscription>)))]
async fn consumers(Held(api): Held<Api>, operator: Operator) -> Result<Json<Merged<Subscription>>, ApiError> {
    operator.require(Role::View)?;
    let said = api.services.consumers(&operator.token).await;
    let services =
        said.into_iter().map(|(name, said)| Said::of(name, said.map(|list| (list, None)))).collect();
    Ok(Json(Merged { services }))
}

/// Go on after a stop
///
/// Closes the breaker that too many permanent failures in a row had opened.
#[utoipa::path(
    post,
    path = "/v1/consumers/resume",
    tag = "services",
    request_body = Resume,
    responses((status = 200, description = "What the service says", body = Object)),
)]
async fn resume(
    Held(api): Held<Api>,
    operator: Operator,
    http::Json(request): http::Json<Resume>,
) -> Result<Json<Value>, ApiError> {
    operator.require(Role::Act)?;
    let service = api.services.consumer_of(&request.topic, &request.group, &operator.token).await?;
    act(&api, &operator, &service, "resume", "/internal/consumer/resume", &request, None).await
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct KeysWanted {
    /// Only this service.
    service: Option<String>,
    /// Source topic, without prefix.
    topic: Option<String>,
    /// Consumer group, without prefix.
    group: Option<String>,
    /// Elements of each service's page.
    limit: Option<i64>,
    /// Cursor of a service; needs `service`.
    after: Option<String>,
}

/// Parked keys
#[utoipa::path(get, path = "/v1/keys", tag = "services", params(KeysWanted), responses((status = 200, description = "By service", body = Merged<Key>)))]
async fn keys(
    Held(api): Held<Api>,
    operator: Operator,
    Params(wanted): Params<KeysWanted>,
) -> Result<Json<Merged<Key>>, ApiError> {
    operator.require(Role::View)?;
    let query = query(&[
        ("topic", wanted.topic),
        ("group", wanted.group),
        ("limit", wanted.limit.map(|limit| limit.to_string())),
        ("after", wanted.after),
    ]);
    let (service, path) = (wanted.service.as_deref(), "/internal/consumer/keys");
    let split = |page: Keys| (page.keys, page.next.map(Value::String));
    Ok(Json(gather(&api.services, service, path, &query, &operator.token, split).await?))
}

/// Release a blocked key
#[utoipa::path(
    post,
    path = "/v1/keys/release",
    tag = "services",
    request_body = Release,
    responses((status = 200, description = "What the service says", body = Object)),
)]
async fn release(
    Held(api): Held<Api>,
    operator: Operator,
    http::Json(request): http::Json<Release>,
) -> Result<Json<Value>, ApiError> {
    operator.require(Role::Act)?;
    let service = api.services.consumer_of(&request.topic, &request.group, &operator.token).await?;
    act(&api, &operator, &service, "release", "/internal/consumer/keys/release", &request, None).await
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TasksWanted {
    /// Only this service.
    service: Option<String>,
    /// `pending`, `running`, `done`, `failed` or `cancelled`.
    status: Option<String>,
    /// Kind of task.
    kind: Option<String>,
    /// Order key.
    key: Option<String>,
    /// Cursor of a service; needs `service`.
    before: Option<String>,
    /// Elements of each service's page.
    limit: Option<i64>,
}

/// Tasks
#[utoipa::path(get, path = "/v1/tasks", tag = "services", params(TasksWanted), responses((status = 200, description = "By service", body = Merged<Object>)))]
async fn tasks(
    Held(api): Held<Api>,
    operator: Operator,
    Params(wanted): Params<TasksWanted>,
) -> Result<Json<Merged<Value>>, ApiError> {
    operator.require(Role::View)?;
    let query = query(&[
        ("status", wanted.status),
        ("kind", wanted.kind),
        ("key", wanted.key),
        ("before", wanted.before),
        ("limit", wanted.limit.map(|limit| limit.to_string())),
    ]);
    let (service, path) = (wanted.service.as_deref(), "/internal/tasks");
    let split = |page: Tasks| (page.tasks, page.next);
    Ok(Json(gather(&api.services, service, path, &query, &operator.token, split).await?))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TaskOf {
    /// Only this service; else each is asked until one knows the task.
    service: Option<String>,
}

/// Retry or cancel a task
#[utoipa::path(
    post,
    path = "/v1/tasks/{id}/{verb}",
    tag = "services",
    params(("id" = Uuid, Path, description = "Task"), ("verb" = String, Path, description = "`retry` or `cancel`"), TaskOf),
    responses((status = 200, description = "The service's verdict", body = Object)),
)]
async fn task(
    Held(api): Held<Api>,
    operator: Operator,
    Segment((id, verb)): Segment<(Uuid, String)>,
    Params(of): Params<TaskOf>,
) -> Result<Json<Value>, ApiError> {
    operator.require(Role::Act)?;
    let act_name = match verb.as_str() {
        "retry" => "task_retry",
        "cancel" => "task_cancel",
        _ => {
            let detail = "a task takes retry and cancel";
            return Err(ApiError::new(StatusCode::NOT_FOUND, "not-found", detail));
        }
    };
    let path = format!("/internal/tasks/{id}/{verb}");
    let mut last = Ok(Json(json!({"verdict": "unknown"})));
    for service in api.services.named(of.service.as_deref())? {
        let said = act(&api, &operator, service, act_name, &path, &json!({}), Some(id)).await;
        match said {
            Ok(Json(said)) if said["verdict"] == "unknown" => {}
            Ok(said) => return Ok(said),
            Err(error) => last = Err(error),
        }
    }
    last
}

fn query<'a>(parts: &[(&'a str, Option<String>)]) -> Vec<(&'a str, String)> {
    parts.iter().filter_map(|(name, value)| Some((*name, value.clone()?))).collect()
}

async fn gather<P: DeserializeOwned, T>(
    services: &Services,
    name: Option<&str>,
    path: &str,
    query: &[(&str, String)],
    token: &str,
    split: impl Fn(P) -> (Vec<T>, Option<Value>),
) -> Result<Merged<T>, Fault> {
    let asked = services.named(name)?.into_iter().map(|service| async move {
        (service.name.clone(), services.get::<P>(service, path, query, token).await)
    });
    let said = join_all(asked).await.into_iter().map(|(name, page)| match page {
        // A service without such things.
        Err(fault) if fault.status() == Some(StatusCode::NOT_FOUND) => Said::of(name, Ok((Vec::new(), None))),
        page => Said::of(name, page.map(&split)),
    });
    Ok(Merged { services: said.collect() })
}

/// Passes an act on, and writes it down with what came of it.
async fn act(
    api: &Api,
    operator: &Operator,
    service: &ServiceAddress,
    verb: &'static str,
    path: &str,
    request: &impl Serialize,
    reference: Option<Uuid>,
) -> Result<Json<Value>, ApiError> {
    let said = api.services.post::<Value>(service, path, request, &operator.token).await;
    if said.as_ref().is_ok_and(|said| said["verdict"] == "unknown")
        || said
            .as_ref()
            .is_err_and(|fault| fault.status() == Some(StatusCode::NOT_FOUND) && reference.is_some())
    {
        return Ok(Json(json!({"verdict": "unknown"})));
    }
    let mut entry = Entry::new(&operator.principal, verb, request).count("service", service.name.clone());
    entry = match &said {
        Ok(said) => entry.count("said", said.clone()),
        Err(fault) => entry.count("fault", fault.to_string()),
    };
    if let Some(id) = reference {
        entry = entry.reference(id);
    }
    let mut connection = api.pool.acquire().await?;
    audit::add(&mut connection, &entry).await?;
    let mut said = said?;
    said["service"] = json!(service.name);
    Ok(Json(said))
}
