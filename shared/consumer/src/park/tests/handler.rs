//! A handler that does as it is told.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use tokio::sync::Semaphore;
use uuid::Uuid;
use waybill_event::{MessageId, OrderEvent};

use crate::{Failure, Handler, Message, Tx};

/// What the handler does with a message.
#[derive(Debug, Clone)]
pub(super) enum Act {
    Transient,
    TransientOnce,
    Permanent,
    Panic,
    PanicOnce,
    /// A failure that names no message, once.
    Deadlock,
    /// Ends its own connection, once.
    Kill,
    /// Runs a failing statement and forgets its error.
    Swallow,
    Gate(Arc<Semaphore>),
}

/// Writes a row per message, which also says how many of its key were committed before it.
#[derive(Debug, Clone, Default)]
pub(super) struct Effects {
    acts: Arc<Mutex<HashMap<Uuid, Act>>>,
    pub(super) calls: Arc<Mutex<Vec<(Uuid, u32)>>>,
    pub(super) committed: Arc<Mutex<Vec<Uuid>>>,
}

impl Effects {
    pub(super) fn on(&self, id: MessageId, act: Act) {
        self.acts.lock().unwrap().insert(id.as_uuid(), act);
    }

    pub(super) fn heal(&self, id: MessageId) {
        self.acts.lock().unwrap().remove(&id.as_uuid());
    }

    pub(super) fn calls(&self, id: MessageId) -> usize {
        self.calls.lock().unwrap().iter().filter(|(called, _)| *called == id.as_uuid()).count()
    }
}

impl Handler for Effects {
    type Event = OrderEvent;

    async fn handle(&self, tx: &mut Tx<'_>, message: &Message<OrderEvent>) -> Result<(), Failure> {
        let id = message.id.as_uuid();
        self.calls.lock().unwrap().push((id, message.attempt));
        sqlx::query(
            "insert into effect (key, n, message_id, before) \
             values ($1, $2, $3, (select count(*) from effect where key is not distinct from $1))",
        )
        .bind(message.key())
        .bind(message.event.version)
        .bind(id)
        .execute(&mut **tx)
        .await?;
        let act = self.acts.lock().unwrap().get(&id).cloned();
        match act {
            None => Ok(()),
            Some(Act::Transient) => Err(Failure::transient(anyhow::anyhow!("not now"))),
            Some(Act::TransientOnce) => {
                self.heal(message.id);
                Err(Failure::transient(anyhow::anyhow!("not yet")))
            }
            Some(Act::Permanent) => Err(Failure::permanent(anyhow::anyhow!("never, says kim@example.com\0"))),
            Some(Act::Panic) => panic!("told to"),
            Some(Act::PanicOnce) => {
                self.heal(message.id);
                panic!("told to, once")
            }
            Some(Act::Deadlock) => {
                self.heal(message.id);
                let busy = "do $$ begin raise exception 'busy' using errcode = '40P01'; end $$";
                sqlx::query(busy).execute(&mut **tx).await?;
                Ok(())
            }
            Some(Act::Kill) => {
                self.heal(message.id);
                sqlx::query("select pg_terminate_backend(pg_backend_pid())").execute(&mut **tx).await?;
                Ok(())
            }
            Some(Act::Swallow) => {
                drop(sqlx::query("select no_such_column").execute(&mut **tx).await);
                Ok(())
            }
            Some(Act::Gate(gate)) => {
                gate.acquire().await.unwrap().forget();
                Ok(())
            }
        }
    }

    fn committed(&self, messages: &[Message<OrderEvent>]) {
        self.committed.lock().unwrap().extend(messages.iter().map(|message| message.id.as_uuid()));
    }
}
