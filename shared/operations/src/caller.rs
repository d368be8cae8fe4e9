//! Who calls, and what the caller may do. Asked before a body is read.

use axum::extract::{FromRef, FromRequestParts};
use axum::http::request::Parts;
use uuid::Uuid;
use waybill_service::auth::{Principal, Role, Verifier};
use waybill_service::http::ApiError;

/// Staff that may look.
pub(crate) struct Viewer;
/// Staff that may see payloads.
pub(crate) struct Reader;
/// Staff that may change something; with the subject, for the log.
pub(crate) struct Actor(pub(crate) Uuid);

async fn staff<S>(parts: &mut Parts, state: &S, role: Role) -> Result<Uuid, ApiError>
where
    Verifier: FromRef<S>,
    S: Send + Sync,
{
    let principal = Principal::from_request_parts(parts, state).await?;
    principal.require_role(role)?;
    Ok(principal.customer)
}

macro_rules! needs {
    ($caller:ty, $role:expr, $make:expr) => {
        impl<S> FromRequestParts<S> for $caller
        where
            Verifier: FromRef<S>,
            S: Send + Sync,
        {
            type Rejection = ApiError;

            async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
                staff(parts, state, $role).await.map($make)
            }
        }
    };
}

needs!(Viewer, Role::View, |_| Self);
needs!(Reader, Role::Payload, |_| Self);
needs!(Actor, Role::Act, Self);
