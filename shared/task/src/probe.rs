//! For this crate's own tests: the worker's statements as the worker's sessions run them.

use std::time::Duration;

use sqlx::PgPool;
use uuid::Uuid;

use crate::TaskId;
use crate::store::{Held, Kinds, Store};

/// A pool with one connection that has the worker's settings and has prepared each statement of the worker, so that
/// exactly these can be explained there.
///
/// # Errors
/// What the database answers.
pub async fn prepared(pool: &PgPool) -> Result<PgPool, sqlx::Error> {
    let store = Store::with_connections(pool, 1);
    let (kinds, lease) = (Kinds::new([("work".to_owned(), 12)]), Duration::from_secs(120));
    let nobody = Uuid::now_v7();
    store.claim_due(&kinds, lease, 8, None).await?;
    store.claim_end(None).await?;
    store.claim_named(&kinds, lease, 8, &[TaskId::from(nobody)], &["nobody".to_owned()]).await?;
    store.sample().await?;
    store.heartbeat(Held { id: nobody, token: nobody }, lease).await?;
    Ok(store.into_pool())
}
