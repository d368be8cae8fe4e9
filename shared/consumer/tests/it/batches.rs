//! Batch handlers with an outcome per message: what is done stays done, what failed takes only itself away.

use waybill_consumer::Subscription;
use waybill_event::{Event, MessageId, OrderEvent, headers};
use waybill_testkit::eventually;

use crate::{
    harness::Scene,
    support::{
        Act, Batches, Effects, GROUP, Running, Source, database, dead_letter_topic, effects, ids, inbox,
        orders, settings, topics, until_committed,
    },
};

#[tokio::test]
async fn a_batch_handler_that_succeeds_is_called_once_for_all() {
    let scene = Scene::new(5).await;
    let delivered = scene.deliver_batch().await;
    assert_eq!(delivered.done, scene.ids);
    scene.only(&[0, 1, 2, 3, 4]).await;
    assert_eq!(scene.handler.batches(), [5]);
}

#[tokio::test]
async fn a_permanent_outcome_does_not_roll_the_others_back() {
    let scene = Scene::new(6).await;
    scene.on(0, Act::Permanent);
    scene.on(3, Act::Permanent);
    let delivered = scene.deliver_batch().await;
    let dead: Vec<_> = delivered.dead.iter().map(|(id, _)| *id).collect();
    assert_eq!(dead, [scene.ids[0], scene.ids[3]]);
    scene.only(&[1, 2, 4, 5]).await;
    assert_eq!(scene.handler.batches(), [6], "one call, one transaction");
    assert_eq!(scene.handler.committed(), delivered.done, "the hook hears of the done ones only");
}

#[tokio::test]
async fn nothing_behind_a_transient_outcome_keeps_its_effect() {
    let scene = Scene::new(6).await;
    scene.on(1, Act::Permanent);
    scene.on(3, Act::Transient);
    scene.on(5, Act::Permanent);
    let delivered = scene.deliver_batch().await;
    assert_eq!(delivered.dead.len(), 1, "not even a dead letter passes it");
    assert_eq!(delivered.dead[0].0, scene.ids[1]);
    assert_eq!(delivered.blocked, Some((scene.ids[3], "not now".to_owned())));
    assert_eq!(delivered.waiting, scene.ids[4..]);
    scene.only(&[0, 2]).await;
    assert_eq!(scene.handler.batches(), [6, 3], "all, then those before it");

    scene.handler.heal(scene.orders[3].order_id);
    scene.handler.heal(scene.orders[1].order_id);
    scene.deliver_batch().await;
    scene.only_sorted(&[0, 1, 2, 3, 4]).await;
}

#[tokio::test]
async fn several_transient_outcomes_stop_at_the_first() {
    let scene = Scene::new(5).await;
    scene.on(2, Act::Transient);
    scene.on(4, Act::Transient);
    let delivered = scene.deliver_batch().await;
    assert_eq!(delivered.blocked.unwrap().0, scene.ids[2]);
    scene.only(&[0, 1]).await;
    scene.handler.heal(scene.orders[2].order_id);
    let delivered = scene.deliver_batch().await;
    assert_eq!(delivered.blocked.unwrap().0, scene.ids[4]);
    scene.only(&[0, 1, 2, 3]).await;
}

#[tokio::test]
async fn an_outcome_over_a_failed_statement_is_judged_again_in_savepoints() {
    for act in
        [Act::Sql("insert into effect (message_id) values (null)"), Act::Swallow("select no_such_column")]
    {
        let scene = Scene::new(4).await;
        scene.on(1, act);
        let delivered = scene.deliver_batch().await;
        let failed = delivered.dead.first().or(delivered.blocked.as_ref()).map(|(id, _)| *id);
        assert_eq!(failed, Some(scene.ids[1]));
        assert!(scene.effects().await.contains(&scene.orders[0].order_id));
        assert!(!scene.effects().await.contains(&scene.orders[1].order_id));
    }
}

#[tokio::test]
async fn a_batch_handler_that_panics_or_deadlocks_is_run_again_message_by_message() {
    for act in
        [Act::Panic, Act::SqlOnce("do $$ begin raise exception 'busy' using errcode = '40P01'; end $$")]
    {
        let scene = Scene::new(3).await;
        scene.on(1, act.clone());
        let delivered = scene.deliver_batch().await;
        let dead = usize::from(matches!(act, Act::Panic));
        assert_eq!((delivered.dead.len(), delivered.done.len()), (dead, 3 - dead), "{act:?}");
    }
}

/// Message by message it is many times slower, so one bad batch must not make those behind it so, least of all while each
/// has something to refuse.
#[tokio::test]
async fn behind_a_batch_that_was_run_message_by_message_batches_are_whole_again() {
    let busy = "do $$ begin raise exception 'busy' using errcode = '40P01'; end $$";
    for act in [Act::Panic, Act::SqlOnce(busy), Act::Swallow("select no_such_column")] {
        let mut scene = Scene::new(9).await;
        scene.on(4, act.clone());
        scene.deliver_batch().await;
        assert!(scene.handler.batches().contains(&1), "{act:?}: {:?}", scene.handler.batches());
        scene.handler.heal(scene.orders[4].order_id);
        scene.deliver_batch().await;
        for refuses in [false, true, true] {
            (scene.orders, scene.ids) = (orders(9), (0..9).map(|_| MessageId::new()).collect());
            if refuses {
                scene.on(2, Act::Permanent);
            }
            let before = scene.handler.batches().len();
            let delivered = scene.deliver_batch().await;
            assert_eq!(delivered.dead.len(), usize::from(refuses));
            assert_eq!(scene.handler.batches()[before..], [9], "{act:?}");
        }
    }
}

/// The whole way: the dead letters on their topic, the retried message in place, the offset behind both.
#[tokio::test]
async fn outcomes_decide_over_dead_letters_and_the_offset() {
    let (database, topics, handler) = (database().await, topics(1).await, Effects::default());
    let sent = orders(20);
    handler.on(sent[4].order_id, Act::Permanent);
    handler.on(sent[9].order_id, Act::Transient);
    handler.on(sent[15].order_id, Act::Permanent);
    Source::new(&topics).orders(0, &sent).await;
    let subscribed = Subscription::new(OrderEvent::TOPIC, GROUP).batch_handler(Batches(handler.clone()));
    let running = Running::start(&database.pool, settings(&topics), subscribed);
    until_committed(&topics, 0, 9).await;
    let retried = async || {
        let calls = handler.calls(sent[9].order_id);
        if calls > 4 { Ok(()) } else { Err(calls) }
    };
    eventually(retried).await;
    assert_eq!(
        topics.read(&dead_letter_topic()).await.len(),
        1,
        "the second one is behind the retried message"
    );
    assert_eq!(inbox(&database.pool).await.len(), 9);
    assert!(handler.calls(sent[19].order_id) <= 4, "what is retried is tried alone");

    handler.heal(sent[9].order_id);
    until_committed(&topics, 0, 20).await;
    let mut expected = ids(&sent);
    expected.retain(|order| ![sent[4].order_id, sent[15].order_id].contains(order));
    assert_eq!(effects(&database.pool).await, expected, "in order");
    let dead = topics.read(&dead_letter_topic()).await;
    assert_eq!(dead[1].header(headers::ORIGIN_OFFSET), Some("15"));
    assert_eq!(dead[1].header(headers::ERROR_CLASS), Some("permanent"));
    running.stop().await;
}
