//! Acts that services carry out: written down before and after.

use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use tracing::Instrument;
use uuid::Uuid;
use waybill_service::http::ApiError;

use crate::ServiceAddress;
use crate::api::{Api, Operator};
use crate::audit::{self, Entry};

/// An act that is passed on.
#[derive(Debug)]
pub(super) struct Act {
    /// What the audit calls it before it is passed on, and once it is known what came of it.
    pub(super) verbs: [&'static str; 2],
    pub(super) path: String,
    pub(super) request: Value,
    /// The task that it is about.
    pub(super) task: Option<Uuid>,
}

impl Act {
    /// Asks the services one after the other until one knows what is meant. No service hears of an act that is not in the
    /// audit, and one that has begun is carried through and written down also when nobody waits for its answer any more.
    pub(super) async fn carry_out(
        self,
        api: &Api,
        operator: &Operator,
        services: Vec<ServiceAddress>,
    ) -> Result<Value, ApiError> {
        let audit = audit::add(&mut *api.pool.acquire().await?, &self.entry(operator, self.verbs[0])).await?;
        let (api, operator) = (api.clone(), operator.clone());
        let carried = async move {
            let (answers, ended) = self.ask(&api, &operator, &services).await;
            let entry = self.entry(&operator, self.verbs[1]).count("act", audit).count("said", answers);
            if let Err(error) = finish(&api, &entry).await {
                tracing::error!(audit_id = audit, %error, "what came of an act cannot be written down");
            }
            ended
        };
        tokio::spawn(carried.in_current_span()).await.map_err(ApiError::internal)?
    }

    fn entry(&self, operator: &Operator, verb: &'static str) -> Entry {
        let entry = Entry::new(&operator.principal, verb, &self.request);
        match self.task {
            Some(id) => entry.reference(id),
            None => entry,
        }
    }

    /// What each service says, and what that comes to.
    async fn ask(
        &self,
        api: &Api,
        operator: &Operator,
        services: &[ServiceAddress],
    ) -> (Map<String, Value>, Result<Value, ApiError>) {
        let mut answers = Map::new();
        let mut ended = Ok(json!({"verdict": "unknown"}));
        for service in services {
            match api.services.post::<Value>(service, &self.path, &self.request, &operator.token).await {
                Ok(mut said) => {
                    answers.insert(service.name.clone(), said.clone());
                    if let Some(said) = said.as_object_mut() {
                        said.insert("service".to_owned(), json!(service.name));
                    }
                    if said["verdict"] != "unknown" {
                        return (answers, Ok(said));
                    }
                }
                // A service without tasks.
                Err(fault) if self.task.is_some() && fault.status() == Some(StatusCode::NOT_FOUND) => {}
                Err(fault) => {
                    answers.insert(service.name.clone(), json!({"fault": fault.to_string()}));
                    ended = Err(fault.into());
                }
            }
        }
        (answers, ended)
    }
}

async fn finish(api: &Api, entry: &Entry) -> Result<i64, sqlx::Error> {
    audit::add(&mut *api.pool.acquire().await?, entry).await
}
