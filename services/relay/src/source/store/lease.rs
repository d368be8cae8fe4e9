//! Leases of buckets and heartbeats of instances, on the database's clock.

use std::time::{Duration, Instant};

use waybill_outbox::BUCKETS;

use super::super::lease::{Round, share};
use super::session::Session;
use super::{Error, Store};

impl Store {
    /// One round: heartbeat, renewal of the `held` leases (bucket and epoch), and as many free ones as a fair
    /// share of the living instances allows, if `more` are wanted.
    ///
    /// # Errors
    /// [`Error::Standby`]; what the database answers.
    pub(crate) async fn round(
        &self,
        instance: &str,
        ttl: Duration,
        held: &[(i16, i64)],
        more: bool,
    ) -> Result<Round, Error> {
        match self.try_round(instance, ttl, held, more).await {
            // The pool hides why there is no connection.
            Err(Error::Database(sqlx::Error::PoolTimedOut)) => {
                self.prove().await?;
                Err(sqlx::Error::PoolTimedOut.into())
            }
            result => result,
        }
    }

    async fn try_round(
        &self,
        instance: &str,
        ttl: Duration,
        held: &[(i16, i64)],
        more: bool,
    ) -> Result<Round, Error> {
        // Before anything is sent: see `Leases::renew`.
        let started = Instant::now();
        let mut session = self.keep().await?;
        let db = &mut session;
        if sqlx::query_scalar!(r#"select pg_is_in_recovery() as "standby!""#).fetch_one(&mut *db).await? {
            return Err(Error::Standby);
        }
        let live = heartbeat(db, instance, ttl).await?;
        let renewed = renew(db, instance, ttl, held).await?;
        let missing = share(live).saturating_sub(renewed.len());
        let acquired =
            if more && missing > 0 { acquire(db, instance, ttl, missing).await? } else { Vec::new() };
        session.end().await?;
        Ok(Round { started, live, renewed, acquired })
    }

    /// Gives leases back at once; nobody has to wait for their end.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn release(&self, instance: &str, leases: &[(i16, i64)]) -> Result<(), Error> {
        let (buckets, epochs): (Vec<i16>, Vec<i64>) = leases.iter().copied().unzip();
        let mut session = self.keep().await?;
        sqlx::query!(
            "update messaging.relay_lease l
             set owner = null, expires_at = '-infinity'
             from unnest($2::smallint[], $3::bigint[]) as mine (bucket, epoch)
             where l.bucket = mine.bucket and l.epoch = mine.epoch and l.owner = $1",
            instance,
            &buckets,
            &epochs,
        )
        .execute(&mut session)
        .await?;
        session.end().await
    }

    /// The instance is gone: the others' shares grow at once.
    ///
    /// # Errors
    /// What the database answers.
    pub(crate) async fn sign_off(&self, instance: &str) -> Result<(), Error> {
        let mut session = self.keep().await?;
        sqlx::query!("delete from messaging.relay_instance where id = $1", instance)
            .execute(&mut session)
            .await?;
        session.end().await
    }
}

async fn heartbeat(db: &mut Session, instance: &str, ttl: Duration) -> Result<i64, Error> {
    sqlx::query!(
        "insert into messaging.relay_instance (id, last_seen) values ($1, messaging.now())
         on conflict (id) do update set last_seen = excluded.last_seen",
        instance,
    )
    .execute(&mut *db)
    .await?;
    sqlx::query!(
        "delete from messaging.relay_instance
         where last_seen < messaging.now() - make_interval(secs => $1)
            or last_seen > messaging.now() + make_interval(secs => $1)",
        ttl.as_secs_f64() * 10.0,
    )
    .execute(&mut *db)
    .await?;
    let live = sqlx::query_scalar!(
        r#"select count(*) as "live!" from messaging.relay_instance
           where last_seen > messaging.now() - make_interval(secs => $1)
             and last_seen <= messaging.now() + make_interval(secs => $1)"#,
        ttl.as_secs_f64(),
    )
    .fetch_one(&mut *db)
    .await?;
    Ok(live.clamp(1, i64::from(BUCKETS)))
}

async fn renew(
    db: &mut Session,
    instance: &str,
    ttl: Duration,
    held: &[(i16, i64)],
) -> Result<Vec<(i16, i64)>, Error> {
    let (buckets, epochs): (Vec<i16>, Vec<i64>) = held.iter().copied().unzip();
    let renewed = sqlx::query!(
        "update messaging.relay_lease l
         set expires_at = messaging.now() + make_interval(secs => $4)
         from unnest($2::smallint[], $3::bigint[]) as mine (bucket, epoch)
         where l.bucket = mine.bucket and l.epoch = mine.epoch and l.owner = $1
         returning l.bucket, l.epoch",
        instance,
        &buckets,
        &epochs,
        ttl.as_secs_f64(),
    )
    .fetch_all(&mut *db)
    .await?;
    Ok(renewed.into_iter().map(|lease| (lease.bucket, lease.epoch)).collect())
}

async fn acquire(
    db: &mut Session,
    instance: &str,
    ttl: Duration,
    most: usize,
) -> Result<Vec<(i16, i64)>, Error> {
    // Free is also what expires later than any lease can: the clock has stepped back since.
    // The epoch rises with every change of owner, so that a late renewal by the old one finds nothing.
    let acquired = sqlx::query!(
        "with free as (
             select bucket from messaging.relay_lease
             where owner is null or expires_at <= messaging.now()
                or expires_at > messaging.now() + make_interval(secs => $2)
             order by random()
             limit $3
             for update skip locked
         )
         update messaging.relay_lease l
         set owner = $1, epoch = l.epoch + 1, expires_at = messaging.now() + make_interval(secs => $2)
         from free
         where l.bucket = free.bucket
         returning l.bucket, l.epoch",
        instance,
        ttl.as_secs_f64(),
        i64::try_from(most).unwrap_or(i64::MAX),
    )
    .fetch_all(&mut *db)
    .await?;
    Ok(acquired.into_iter().map(|lease| (lease.bucket, lease.epoch)).collect())
}
