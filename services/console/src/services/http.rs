//! Routes that pass on to the services: consumers, parked keys, tasks.

use axum::Json;
use axum::extract::State as Held;
use axum::http::StatusCode;
use futures::future::join_all;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use waybill_service::auth::Role;
use waybill_service::http::{self, ApiError, Params, Segment, field};

use super::act::Act;
use super::contract::{Key, Keys, Subscription, Tasks};
use super::view::{LONGEST_NAME, Merged, Release, Resume, Said};
use super::{Fault, Services};
use crate::api::{Api, Operator};

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
    let path = "/internal/consumer/resume".to_owned();
    let act = Act { verbs: ["resume", "resume_finished"], path, request: json!(request), task: None };
    Ok(Json(act.carry_out(&api, &operator, vec![service]).await?))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct KeysWanted {
    /// Only this service.
    #[serde(deserialize_with = "field::optional_text::<1, LONGEST_NAME, _>")]
    #[param(min_length = 1, max_length = 249)]
    service: Option<String>,
    /// Source topic, without prefix.
    #[serde(deserialize_with = "field::optional_text::<1, LONGEST_NAME, _>")]
    #[param(min_length = 1, max_length = 249)]
    topic: Option<String>,
    /// Consumer group, without prefix.
    #[serde(deserialize_with = "field::optional_text::<1, LONGEST_NAME, _>")]
    #[param(min_length = 1, max_length = 249)]
    group: Option<String>,
    /// Elements of each service's page: 50 if absent, at most 500.
    #[serde(deserialize_with = "field::optional_integer::<1, 500, _, _>")]
    #[param(minimum = 1, maximum = 500)]
    limit: Option<i64>,
    /// Cursor of a service; needs `service`.
    #[serde(deserialize_with = "field::optional_text::<1, 255, _>")]
    #[param(min_length = 1, max_length = 255)]
    after: Option<String>,
}

/// Parked keys
///
/// A topic or group that no service knows is a mistake, and not a list of nothing.
#[utoipa::path(get, path = "/v1/keys", tag = "services", params(KeysWanted), responses((status = 200, description = "By service", body = Merged<Key>)))]
async fn keys(
    Held(api): Held<Api>,
    operator: Operator,
    Params(wanted): Params<KeysWanted>,
) -> Result<Json<Merged<Key>>, ApiError> {
    operator.require(Role::View)?;
    cursor_of_one("/after", wanted.after.as_deref(), wanted.service.as_deref())?;
    let named = wanted.topic.is_some() || wanted.group.is_some();
    let any = |name: &Option<String>| name.clone().unwrap_or_else(|| "any".to_owned());
    let nobody = Fault::NoConsumer { topic: any(&wanted.topic), group: any(&wanted.group) };
    let query = query(&[
        ("topic", wanted.topic),
        ("group", wanted.group),
        ("limit", wanted.limit.map(|limit| limit.to_string())),
        ("after", wanted.after),
    ]);
    let (service, path) = (wanted.service.as_deref(), "/internal/consumer/keys");
    let split = |page: Keys| (page.keys, page.next.map(Value::String));
    let keys = gather(&api.services, service, path, &query, &operator.token, split).await?;
    // A name that no service knows is a mistake, and not a list of nothing.
    let nobody = (named && keys.iter().all(|(_, said)| said.is_none())).then_some(nobody);
    nobody.map_or_else(|| Ok(Json(merged(keys))), |fault| Err(fault.into()))
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
    let path = "/internal/consumer/keys/release".to_owned();
    let act = Act { verbs: ["release", "release_finished"], path, request: json!(request), task: None };
    Ok(Json(act.carry_out(&api, &operator, vec![service]).await?))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TasksWanted {
    /// Only this service.
    #[serde(deserialize_with = "field::optional_text::<1, LONGEST_NAME, _>")]
    #[param(min_length = 1, max_length = 249)]
    service: Option<String>,
    /// `pending`, `running`, `done`, `failed` or `cancelled`.
    #[serde(deserialize_with = "field::optional_text::<1, 32, _>")]
    #[param(min_length = 1, max_length = 32)]
    status: Option<String>,
    /// Kind of task.
    #[serde(deserialize_with = "field::optional_text::<1, 255, _>")]
    #[param(min_length = 1, max_length = 255)]
    kind: Option<String>,
    /// Order key, which may be empty.
    #[serde(deserialize_with = "field::optional_text::<0, 8192, _>")]
    #[param(min_length = 0, max_length = 8192)]
    key: Option<String>,
    /// Cursor of a service; needs `service`.
    #[serde(deserialize_with = "field::optional_text::<1, 255, _>")]
    #[param(min_length = 1, max_length = 255)]
    before: Option<String>,
    /// Elements of each service's page: 50 if absent, at most 500.
    #[serde(deserialize_with = "field::optional_integer::<1, 500, _, _>")]
    #[param(minimum = 1, maximum = 500)]
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
    cursor_of_one("/before", wanted.before.as_deref(), wanted.service.as_deref())?;
    let query = query(&[
        ("status", wanted.status),
        ("kind", wanted.kind),
        ("key", wanted.key),
        ("before", wanted.before),
        ("limit", wanted.limit.map(|limit| limit.to_string())),
    ]);
    let (service, path) = (wanted.service.as_deref(), "/internal/tasks");
    let split = |page: Tasks| (page.tasks, page.next);
    let tasks = gather(&api.services, service, path, &query, &operator.token, split).await?;
    Ok(Json(merged(tasks)))
}

#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(default, deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TaskOf {
    /// Only this service; else each is asked until one knows the task.
    #[serde(deserialize_with = "field::optional_text::<1, LONGEST_NAME, _>")]
    #[param(min_length = 1, max_length = 249)]
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
    let verbs = match verb.as_str() {
        "retry" => ["task_retry", "task_retry_finished"],
        "cancel" => ["task_cancel", "task_cancel_finished"],
        _ => {
            let detail = "a task takes retry and cancel";
            return Err(ApiError::new(StatusCode::NOT_FOUND, "not-found", detail));
        }
    };
    let path = format!("/internal/tasks/{id}/{verb}");
    let act = Act { verbs, path, request: json!({}), task: Some(id) };
    let services = api.services.named(of.service.as_deref())?.into_iter().cloned().collect();
    Ok(Json(act.carry_out(&api, &operator, services).await?))
}

fn query<'a>(parts: &[(&'a str, Option<String>)]) -> Vec<(&'a str, String)> {
    parts.iter().filter_map(|(name, value)| Some((*name, value.clone()?))).collect()
}

/// A cursor is one service's.
fn cursor_of_one(pointer: &str, cursor: Option<&str>, service: Option<&str>) -> Result<(), ApiError> {
    if cursor.is_some() && service.is_none() {
        return Err(ApiError::invalid(pointer, "is the cursor of one service: say which with service"));
    }
    Ok(())
}

/// By service and its name: what it says, or nothing where it has no such things.
type Gathered<T> = Vec<(String, Option<Result<(Vec<T>, Option<Value>), Fault>>)>;

async fn gather<P: DeserializeOwned, T>(
    services: &Services,
    name: Option<&str>,
    path: &str,
    query: &[(&str, String)],
    token: &str,
    split: impl Fn(P) -> (Vec<T>, Option<Value>),
) -> Result<Gathered<T>, Fault> {
    let asked = services.named(name)?.into_iter().map(|service| async move {
        (service.name.clone(), services.get::<P>(service, path, query, token).await)
    });
    let said = join_all(asked).await.into_iter().map(|(name, page)| match page {
        Err(fault) if fault.status() == Some(StatusCode::NOT_FOUND) => Ok((name, None)),
        // The caller asked wrongly: that is no trouble of the service, to be shown beside what others say.
        Err(fault) if fault.status() == Some(StatusCode::BAD_REQUEST) => Err(fault),
        page => Ok((name, Some(page.map(&split)))),
    });
    said.collect()
}

fn merged<T>(gathered: Gathered<T>) -> Merged<T> {
    let said =
        |(name, said): (String, Option<_>)| Said::of(name, said.unwrap_or_else(|| Ok((Vec::new(), None))));
    Merged { services: gathered.into_iter().map(said).collect() }
}
