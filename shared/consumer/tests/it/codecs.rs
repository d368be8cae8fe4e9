//! What librdkafka cannot decompress: it stands still visibly, and nothing is skipped.

use std::time::Duration;

use waybill_consumer::metrics;
use waybill_event::{Event, OrderEvent};
use waybill_testkit::{Broker, Topics, eventually};

use crate::support::{
    Effects, GROUP, Running, Source, database, dead_letter_topic, each, effects, ids, orders, settings,
    sorted, until_effects,
};

/// A number that no codec has: the same to the client as one that it was built without.
const UNKNOWN: u8 = 5;

#[tokio::test]
async fn a_batch_in_an_unknown_codec_blocks_its_partition_alone_and_by_name_until_it_can_be_read() {
    let (broker, database) = (Broker::start().await, database().await);
    // In front of everything that the consumer has ever read, and behind some of it.
    for first in [true, false] {
        let topics = Topics::none_on(&broker.bootstrap());
        topics.add(OrderEvent::TOPIC, 2, &[]).await;
        topics.add(&dead_letter_topic(), 2, &[]).await;
        let (source, sent, handler) = (Source::new(&topics), orders(30), Effects::default());
        let mut settings = settings(&topics);
        settings.watchdog_interval = Duration::from_millis(500);
        source.orders(0, &sent[..10]).await;
        source.orders(0, &sent[10..20]).await;
        let stored = broker.batches(&topics.name(OrderEvent::TOPIC));
        let broken = if first { 0 } else { stored.len() - 1 };
        let before: i32 = stored[..broken].iter().map(|batch| batch.records).sum();
        stored[broken].name_codec(UNKNOWN);
        source.orders(0, &sent[20..25]).await;
        let running = Running::start(&database.pool, settings, each(&handler));
        let blocked = eventually(async || {
            let blocked = running.status.blocked();
            if blocked.iter().any(|b| b.reason == metrics::COMPRESSION) { Ok(blocked) } else { Err(blocked) }
        })
        .await;
        assert_eq!(blocked.len(), 1, "{blocked:?}");
        let group = topics.name(GROUP);
        let place = (blocked[0].topic.clone(), blocked[0].partition, blocked[0].group.clone());
        assert_eq!(place, (topics.name(OrderEvent::TOPIC), 0, group));
        let said = [format!("codec 0x{UNKNOWN}"), format!("at {before} "), "0x4 zstd".to_owned()];
        assert!(
            said.iter().all(|part| blocked[0].error.contains(part)),
            "{said:?} in {:?}",
            blocked[0].error
        );
        // The other partition goes on.
        source.orders(1, &sent[25..]).await;
        let readable = [&sent[..before as usize], &sent[25..]].concat();
        until_effects(&database.pool, readable.len()).await;
        assert_eq!(
            sorted(effects(&database.pool).await),
            sorted(ids(&readable)),
            "passes what it cannot read"
        );
        stored[broken].name_codec(0);
        until_effects(&database.pool, sent.len()).await;
        assert_eq!(sorted(effects(&database.pool).await), sorted(ids(&sent)), "none skipped, none twice");
        eventually(async || {
            let blocked = running.status.blocked();
            if blocked.is_empty() { Ok(()) } else { Err(blocked) }
        })
        .await;
        running.stop().await;
        sqlx::raw_sql("truncate effect").execute(&database.pool).await.unwrap();
    }
}
