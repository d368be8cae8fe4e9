//! The batch transaction, rule by rule, without Kafka.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use sqlx::{PgPool, Row};
use tokio::sync::Semaphore;
use waybill_consumer::{
    Message,
    harness::{Delivered, Harness},
};
use waybill_event::{MessageId, OrderEvent};
use waybill_testkit::{Database, eventually};

use crate::support::{Act, Batches, Effects, GROUP, database, effects, ids, inbox, orders, sorted};

const CONSTRAINT: &str = "insert into deferred values (1)";
const SERIALIZATION: &str = "do $$ begin raise exception 'busy' using errcode = '40001'; end $$";
const SYNTAX: &str = "select no_such_column";

pub(crate) struct Scene {
    pub(crate) database: Database,
    pub(crate) harness: Harness,
    pub(crate) handler: Effects,
    pub(crate) orders: Vec<OrderEvent>,
    pub(crate) ids: Vec<MessageId>,
}

impl Scene {
    pub(crate) async fn new(count: usize) -> Self {
        let database = database().await;
        let harness = Harness::new(database.pool.clone(), GROUP);
        let ids = (0..count).map(|_| MessageId::new()).collect();
        Self { harness, handler: Effects::default(), orders: orders(count), ids, database }
    }

    pub(crate) fn messages(&self) -> Vec<Message<OrderEvent>> {
        self.orders
            .iter()
            .zip(&self.ids)
            .map(|(order, id)| Message::new(order.clone()).with_id(*id))
            .collect()
    }

    pub(crate) fn on(&self, index: usize, act: Act) {
        self.handler.on(self.orders[index].order_id, act);
    }

    pub(crate) async fn effects(&self) -> Vec<uuid::Uuid> {
        effects(&self.database.pool).await
    }

    pub(crate) async fn inbox(&self) -> Vec<uuid::Uuid> {
        sorted(inbox(&self.database.pool).await.into_keys().collect())
    }

    pub(crate) async fn deliver(&self) -> Delivered {
        self.harness.deliver(&self.handler, self.messages()).await.unwrap()
    }

    pub(crate) async fn deliver_batch(&self) -> Delivered {
        let batches = Batches(self.handler.clone());
        self.harness.deliver_batch(&batches, self.messages()).await.unwrap()
    }

    /// As [`only`](Self::only), whatever the order of the effects.
    pub(crate) async fn only_sorted(&self, indexes: &[usize]) {
        let orders = indexes.iter().map(|index| self.orders[*index].order_id).collect();
        assert_eq!(sorted(self.effects().await), sorted(orders));
    }

    /// Exactly these have an effect and an inbox row.
    pub(crate) async fn only(&self, indexes: &[usize]) {
        let orders: Vec<_> = indexes.iter().map(|index| self.orders[*index].order_id).collect();
        let ids = indexes.iter().map(|index| self.ids[*index].as_uuid()).collect();
        assert_eq!(self.effects().await, orders);
        assert_eq!(self.inbox().await, sorted(ids));
    }
}

#[tokio::test]
async fn effect_and_inbox_row_commit_together_and_only_once() {
    let scene = Scene::new(3).await;
    let first = scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert_eq!(first.done, scene.ids);
    assert_eq!(scene.handler.committed(), scene.ids);
    let second = scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert_eq!(second.done, scene.ids);
    scene.only(&[0, 1, 2]).await;
    assert_eq!(scene.handler.committed(), scene.ids, "the hook must not hear of duplicates");
}

#[tokio::test]
async fn one_id_twice_in_a_batch_is_handled_once() {
    let mut scene = Scene::new(3).await;
    scene.ids[2] = scene.ids[0];
    scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert_eq!(scene.effects().await, ids(&scene.orders[..2]));
}

#[tokio::test]
async fn groups_have_inboxes_of_their_own() {
    let scene = Scene::new(1).await;
    scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    let other = Harness::new(scene.database.pool.clone(), "notification");
    other.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert_eq!(scene.effects().await.len(), 2);
}

#[tokio::test]
async fn a_permanent_failure_takes_only_its_own_writes_and_row_with_it() {
    let scene = Scene::new(4).await;
    scene.on(1, Act::Permanent);
    let delivered = scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert_eq!(delivered.dead, [(scene.ids[1], "never, says kim@example.com".to_owned())]);
    scene.only(&[0, 2, 3]).await;
}

#[tokio::test]
async fn nothing_passes_a_transient_failure() {
    let scene = Scene::new(4).await;
    scene.on(1, Act::Transient);
    let delivered = scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert_eq!(delivered.done, [scene.ids[0]]);
    assert_eq!(delivered.blocked, Some((scene.ids[1], "not now".to_owned())));
    assert_eq!(delivered.waiting, scene.ids[2..]);
    scene.only(&[0]).await;
    scene.handler.heal(scene.orders[1].order_id);
    scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    scene.only(&[0, 1, 2, 3]).await;
}

#[tokio::test]
async fn a_panic_is_this_messages_alone() {
    let scene = Scene::new(3).await;
    scene.on(1, Act::Panic);
    let delivered = scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert_eq!(delivered.dead, [(scene.ids[1], "handler panicked: told to".to_owned())]);
    scene.only(&[0, 2]).await;
}

#[tokio::test]
async fn a_failed_statement_does_not_fail_the_messages_beside_it() {
    let scene = Scene::new(3).await;
    scene.on(1, Act::Sql("insert into effect (message_id) values (null)"));
    let delivered = scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert_eq!(delivered.dead.len(), 1);
    scene.only(&[0, 2]).await;
}

#[tokio::test]
async fn an_unknown_column_blocks_and_does_not_empty_the_topic_into_the_dead_letters() {
    let scene = Scene::new(1).await;
    scene.on(0, Act::Sql(SYNTAX));
    let delivered = scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert!(delivered.blocked.is_some());
}

#[tokio::test]
async fn a_swallowed_error_is_not_taken_for_success() {
    for count in [1, 3] {
        let scene = Scene::new(count).await;
        scene.on(count - 1, Act::Swallow(SYNTAX));
        let delivered = scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
        assert_eq!(delivered.blocked.unwrap().0, scene.ids[count - 1]);
        scene.only(&(0..count - 1).collect::<Vec<_>>()).await;
    }
}

#[tokio::test]
async fn a_serialization_failure_names_no_message_and_all_succeed_alone() {
    let scene = Scene::new(3).await;
    scene.on(1, Act::SqlOnce(SERIALIZATION));
    let delivered = scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert_eq!(delivered.done, scene.ids);
    scene.only(&[0, 1, 2]).await;
}

#[tokio::test]
async fn a_constraint_that_speaks_at_commit_finds_its_message() {
    let scene = Scene::new(3).await;
    scene.on(1, Act::Sql(CONSTRAINT));
    let delivered = scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert_eq!(delivered.dead.len(), 1);
    assert_eq!(delivered.dead[0].0, scene.ids[1]);
    scene.only(&[0, 2]).await;
}

#[tokio::test]
async fn more_failing_messages_than_savepoints_fit_a_transaction() {
    let scene = Scene::new(130).await;
    for index in [0, 49, 50, 99, 129] {
        scene.on(index, Act::Permanent);
    }
    let delivered = scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    assert_eq!(delivered.dead.len(), 5);
    assert_eq!(scene.effects().await.len(), 125);
    assert_eq!(scene.inbox().await.len(), 125);
    assert_eq!(scene.handler.committed(), delivered.done);
}

#[tokio::test]
async fn overlapping_batches_in_any_order_do_not_deadlock() {
    let scene = Scene::new(40).await;
    let deliveries = (0..8).map(|turn| {
        let (mut messages, harness) = (scene.messages(), Harness::new(scene.database.pool.clone(), GROUP));
        messages.rotate_left(turn * 5);
        if turn % 2 == 1 {
            messages.reverse();
        }
        let handler = scene.handler.clone();
        async move { harness.deliver(&handler, messages).await }
    });
    for delivered in join_all(deliveries).await {
        assert_eq!(delivered.unwrap().done.len(), 40);
    }
    assert_eq!(sorted(scene.effects().await), sorted(ids(&scene.orders)));
    // A deadlock would only cost time, so it is looked for in the server's count, complete once its sessions ended.
    scene.database.pool.close().await;
    let watch = PgPool::connect(&scene.database.url).await.unwrap();
    let counted = "select deadlocks from pg_stat_database where datname = current_database() and not exists \
                   (select 1 from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and \
                   backend_type = 'client backend')";
    let deadlocks = async || {
        let row = sqlx::query_scalar::<_, i64>(counted).fetch_optional(&watch).await.unwrap();
        row.ok_or("sessions are still ending")
    };
    assert_eq!(eventually(deadlocks).await, 0);
}

#[tokio::test]
async fn a_cancelled_batch_leaves_no_transaction_behind() {
    let scene = Arc::new(Scene::new(2).await);
    scene.on(1, Act::Gate(Arc::new(Semaphore::new(0))));
    let inner = Arc::clone(&scene);
    let task =
        tokio::spawn(async move { inner.harness.deliver(&inner.handler, inner.messages()).await.map(drop) });
    let waiting = scene.orders[1].order_id;
    eventually(async || if scene.handler.calls(waiting) == 1 { Ok(()) } else { Err("not called yet") }).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    no_open_transaction(&scene).await;
    scene.handler.heal(waiting);
    scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    scene.only(&[0, 1]).await;
}

/// Wherever a batch is cancelled, `begin` included, no connection comes back to the pool inside a transaction.
#[tokio::test]
async fn a_batch_cancelled_at_any_moment_poisons_no_connection() {
    let scene = Scene::new(3).await;
    for step in 0..150 {
        let wait = Duration::from_micros(step * 40);
        let _ = tokio::time::timeout(wait, scene.harness.deliver(&scene.handler, scene.messages())).await;
        let mut connection = scene.database.pool.acquire().await.unwrap();
        // By the simple protocol: it takes one timestamp for a statement that is a transaction of its own.
        let row = sqlx::raw_sql("select now() = statement_timestamp()").fetch_one(&mut *connection).await;
        let alone: bool = row.unwrap().get(0);
        assert!(alone, "the statement ran inside an older transaction, step {step}");
    }
    no_open_transaction(&scene).await;
    scene.harness.deliver(&scene.handler, scene.messages()).await.unwrap();
    scene.only(&[0, 1, 2]).await;
}

async fn no_open_transaction(scene: &Scene) {
    let open = "select count(*) from pg_stat_activity \
                where datname = current_database() and state like 'idle in transaction%'";
    eventually(async || match sqlx::query_scalar::<_, i64>(open).fetch_one(&scene.database.pool).await {
        Ok(0) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}
