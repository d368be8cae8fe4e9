//! The whole way of a message that ends the process, against a real database. A process that dies is one whose count is dropped without a word.

use std::collections::HashMap;

use sqlx::{AssertSqlSafe, PgPool};
use uuid::Uuid;
use waybill_consumer::{
    Message,
    crash::{CrashCount, Mode, Verdict},
    harness::Harness,
};
use waybill_event::{MessageId, OrderEvent};

use crate::support::{Effects, GROUP, database, effects, ids, inbox, orders};

pub(crate) const TOPIC: &str = "orders.v1";

pub(crate) fn process() -> CrashCount {
    CrashCount::new(GROUP, TOPIC, 0)
}

pub(crate) async fn count(pool: &PgPool, table: &str) -> i64 {
    let statement = format!("select count(*) from messaging.{table}");
    sqlx::query_scalar(AssertSqlSafe(statement)).fetch_one(pool).await.unwrap()
}

/// `(message, times)` of those begun and not ended.
pub(crate) async fn suspects(pool: &PgPool) -> HashMap<Uuid, i32> {
    let rows: Vec<(Uuid, i32)> =
        sqlx::query_as("select message_id, crashes from messaging.suspect").fetch_all(pool).await.unwrap();
    rows.into_iter().collect()
}

/// A topic whose poison ends the process that handles it, and what the broker knows of the group.
struct World {
    pool: PgPool,
    harness: Harness,
    log: Vec<(MessageId, OrderEvent)>,
    poison: Vec<MessageId>,
    /// Messages finished per offset commit.
    commit_every: i64,
    committed: i64,
    dead: Vec<MessageId>,
}

/// The process is gone.
struct Died;

impl World {
    fn new(pool: &PgPool, length: usize, poison: &[usize], commit_every: i64) -> Self {
        let log: Vec<_> = orders(length).into_iter().map(|order| (MessageId::new(), order)).collect();
        let poison = poison.iter().map(|at| log[*at].0).collect();
        let harness = Harness::new(pool.clone(), GROUP);
        Self { pool: pool.clone(), harness, log, poison, commit_every, committed: 0, dead: Vec::new() }
    }

    /// One process from its start to its end.
    async fn run(&mut self, batch: usize) -> Result<(), Died> {
        let (count, mut next) = (process(), self.committed);
        while (next as usize) < self.log.len() {
            let end = self.log.len().min(next as usize + batch) as i64;
            count.begin(&self.pool, next, end).await.unwrap();
            match count.progressed(&self.pool, self.committed).await.unwrap() {
                Mode::Normal => {
                    self.handle(next, end).await?;
                    next = end;
                }
                Mode::Suspect => {
                    self.handle_alone(&count, next).await?;
                    next += 1;
                }
            }
            if next - self.committed >= self.commit_every || next == self.log.len() as i64 {
                self.committed = next;
            }
        }
        count.clean_end(&self.pool).await.unwrap();
        Ok(())
    }

    async fn handle_alone(&mut self, count: &CrashCount, at: i64) -> Result<(), Died> {
        let id = self.log[at as usize].0;
        match count.before(&self.pool, id.as_uuid(), None).await.unwrap() {
            Verdict::Crash => {
                self.dead.push(id);
                let row = "insert into messaging.processed_message values ($1, $2, now(), 'dead')";
                sqlx::query(row).bind(GROUP).bind(id.as_uuid()).execute(&self.pool).await.unwrap();
            }
            Verdict::Handle => self.handle(at, at + 1).await?,
        }
        count.after(&self.pool, id.as_uuid()).await.unwrap();
        Ok(())
    }

    /// Dies at a poisonous message that the inbox does not know.
    async fn handle(&self, from: i64, to: i64) -> Result<(), Died> {
        let batch = &self.log[from as usize..to as usize];
        let known = inbox(&self.pool).await;
        if batch.iter().any(|(id, _)| self.poison.contains(id) && !known.contains_key(&id.as_uuid())) {
            return Err(Died);
        }
        let messages = batch.iter().map(|(id, order)| Message::new(order.clone()).with_id(*id)).collect();
        self.harness.deliver(&Effects::default(), messages).await.unwrap();
        Ok(())
    }

    /// Starts processes until one ends in order; returns how many died.
    async fn supervise(&mut self, batch: usize) -> usize {
        for deaths in 0..40 {
            if self.run(batch).await.is_ok() {
                return deaths;
            }
        }
        panic!("the process dies for ever");
    }
}

#[tokio::test]
async fn of_a_batch_only_the_message_that_ends_the_process_is_dead_lettered() {
    for (poison, batch, commit_every) in
        [(0, 8, 1), (5, 8, 1), (7, 8, 1), (5, 8, 3), (5, 8, 100), (12, 8, 1), (12, 8, 100), (19, 3, 2)]
    {
        let database = database().await;
        let mut world = World::new(&database.pool, 20, &[poison], commit_every);
        let deaths = world.supervise(batch).await;
        assert_eq!(world.dead, world.poison, "poison {poison}, commit every {commit_every}");
        let mut expected: Vec<_> = world.log.iter().map(|(_, order)| order.clone()).collect();
        expected.remove(poison);
        assert_eq!(effects(&database.pool).await, ids(&expected), "each of the others once, in order");
        // In a batch behind the first, whose commit came out, the first death says nothing yet of where it was.
        let further = poison >= batch && commit_every < 100;
        assert_eq!(deaths, 2 + 3 + usize::from(further), "poison {poison}, commit every {commit_every}");
        assert_eq!(
            (count(&database.pool, "consumer_start").await, suspects(&database.pool).await.len()),
            (0, 0)
        );
    }
}

#[tokio::test]
async fn two_in_one_batch_are_found_one_after_the_other() {
    let database = database().await;
    let mut world = World::new(&database.pool, 10, &[2, 6], 1);
    assert_eq!(world.supervise(10).await, 2 + 3 + 3);
    assert_eq!(world.dead, world.poison);
    assert_eq!(effects(&database.pool).await.len(), 8);
}
