//! Writes an effect, then does what the script says.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::{PgConnection, PgExecutor, PgPool};
use uuid::Uuid;
use waybill_consumer::{Failure, Handler, Message, Tx};
use waybill_event::{OrderEvent, headers};

use super::script::{FOREVER, Fault, Script};
use super::{Mode, Options};

/// The handler of a group.
#[derive(Debug)]
pub(super) struct Effects {
    group: String,
    mode: Mode,
    seed: u64,
    tiers: usize,
    cut: Mutex<HashSet<Uuid>>,
    /// For what is asked before the transaction is used.
    pool: PgPool,
}

impl Effects {
    pub(super) fn new(group: &str, options: &Options, pool: PgPool) -> Self {
        let (mode, seed, tiers) = (options.script, options.seed, options.tiers.len());
        Self { group: group.to_owned(), mode, seed, tiers, cut: Mutex::default(), pool }
    }

    /// Whether this process is yet to end the connection of this message.
    fn is_first_cut(&self, id: Uuid) -> bool {
        self.cut.lock().unwrap_or_else(PoisonError::into_inner).insert(id)
    }

    async fn write(&self, tx: &mut PgConnection, message: &Message<OrderEvent>) -> Result<(), sqlx::Error> {
        let due = message.headers().text(headers::DUE_AT).and_then(waybill_event::time::parse);
        sqlx::query(
            "insert into effect
               (consumer_group, message_id, key, version, attempt, worker, previous, made_at, due_at)
             select $1, $2, $3, $4, $5, $6,
               (select max(seq) from effect where consumer_group = $1 and key = $3), $7, $8",
        )
        .bind(&self.group)
        .bind(message.id.as_uuid())
        .bind(message.key_text())
        .bind(message.event.version)
        .bind(i32::try_from(message.attempt).unwrap_or(i32::MAX))
        .bind(i32::try_from(std::process::id()).unwrap_or(0))
        .bind(message.event.occurred_at)
        .bind(due as Option<DateTime<Utc>>)
        .execute(tx)
        .await
        .map(drop)
    }
}

impl Handler for Effects {
    type Event = OrderEvent;

    async fn handle(&self, tx: &mut Tx<'_>, message: &Message<OrderEvent>) -> Result<(), Failure> {
        let OrderEvent { order_id, version, .. } = message.event;
        let script = Script::of(self.mode, self.seed, &self.group, order_id, version, self.tiers);
        if let Some((fault @ (Fault::Refused | Fault::RefusedForNow), times)) = script.fault
            && message.attempt <= times
            && !(times == FOREVER && is_repaired(&self.pool, message.id.as_uuid()).await?)
        {
            return fail(tx, fault).await;
        }
        // So that every other failure leaves something to undo.
        self.write(tx, message).await?;
        if self.mode == Mode::Outage && is_out(tx).await? {
            return Err(Failure::transient(anyhow::anyhow!("what it depends on is away")));
        }
        if let Some(time) = script.slow {
            tokio::time::sleep(time).await;
        }
        if script.cut && self.is_first_cut(message.id.as_uuid()) {
            sqlx::query("select pg_terminate_backend(pg_backend_pid())").execute(&mut **tx).await?;
        }
        if script.clash {
            clash(tx, version % 2 == 0).await?;
        }
        match script.fault {
            Some((fault, times)) if message.attempt <= times => {
                if times == FOREVER && is_repaired(&mut **tx, message.id.as_uuid()).await? {
                    return Ok(());
                }
                fail(tx, fault).await
            }
            _ => Ok(()),
        }
    }
}

async fn fail(tx: &mut Tx<'_>, fault: Fault) -> Result<(), Failure> {
    let statement = match fault {
        Fault::RefusedForNow => return Err(Failure::transient(anyhow::anyhow!("refused for now"))),
        Fault::Refused => return Err(Failure::permanent(anyhow::anyhow!("refused"))),
        Fault::Transient => return Err(Failure::transient(anyhow::anyhow!("not now"))),
        Fault::Permanent => return Err(Failure::permanent(anyhow::anyhow!("never"))),
        Fault::Panic => panic!("told to"),
        Fault::Crash => {
            super::end_process("told to by a message");
            return Ok(());
        }
        Fault::Statement => "select 1 / 0",
        Fault::Missing | Fault::Swallowed => "select from nowhere",
    };
    match sqlx::query(statement).execute(&mut **tx).await {
        Err(error) if fault != Fault::Swallowed => Err(error.into()),
        _ => Ok(()),
    }
}

async fn clash(tx: &mut PgConnection, upwards: bool) -> Result<(), sqlx::Error> {
    for id in if upwards { [0, 1] } else { [1, 0] } {
        sqlx::query("update hot set n = n + 1 where id = $1").bind(id).execute(&mut *tx).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn is_repaired(database: impl PgExecutor<'_>, id: Uuid) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("select exists (select from repaired where message_id = $1)")
        .bind(id)
        .fetch_one(database)
        .await
}

async fn is_out(tx: &mut PgConnection) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("select exists (select from outage)").fetch_one(tx).await
}
