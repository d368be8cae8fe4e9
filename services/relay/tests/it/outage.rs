//! What a healthy broker never does, on librdkafka's mock cluster.

use std::time::Duration;

use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use rdkafka::types::{RDKafkaApiKey, RDKafkaRespErr};

use crate::support::{Relay, World, becomes};

struct Mock {
    world: World,
    cluster: MockCluster<'static, DefaultProducerContext>,
    relay: Relay,
}

impl Mock {
    async fn start() -> Self {
        Self::of(1).await
    }

    /// Every partition is led by broker 1.
    async fn of(brokers: i32) -> Self {
        let world = World::new(&[]).await;
        let cluster = MockCluster::new(brokers).expect("mock cluster");
        for topic in ["orders.v1", "points.v1"] {
            cluster.create_topic(&world.topics.name(topic), 4, 1).expect("topic");
            for partition in 0..4 {
                cluster.partition_leader(&world.topics.name(topic), partition, Some(1)).expect("a leader");
            }
        }
        let sources = [("order", &world.database)];
        let settings = ["--relay-lease-renew", "100ms", "--relay-topic-retry", "200ms"];
        let relay = world.relay_of(&sources, &cluster.bootstrap_servers(), &settings).await;
        relay.wait_for(|s| &s.buckets, 64).await;
        Self { world, cluster, relay }
    }

    /// Every row is marked; nothing died, nothing was overtaken.
    async fn settles(self) {
        self.world.wait_for_count("sent_at is null", 0).await;
        assert_eq!(self.world.count("dead_at is not null or held_at is not null or attempts > 0").await, 0);
        assert_eq!(self.relay.get(|s| &s.inversions), 0);
        assert_eq!(self.relay.get(|s| &s.below_floor), 0);
        self.relay.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_wait_for_brokers_that_are_down_and_none_dies() {
    let mock = Mock::start().await;
    mock.world.write("orders.v1", 10, 5).await;
    mock.relay.wait_for(|s| &s.published, 50).await;
    mock.cluster.broker_down(1).expect("down");
    mock.world.write("orders.v1", 10, 5).await;
    mock.relay.wait_for(|s| &s.in_flight, 10).await;
    mock.cluster.broker_up(1).expect("up");
    mock.relay.wait_for(|s| &s.published, 100).await;
    assert_eq!(mock.relay.get(|s| &s.rebuilds), 0, "the client itself kept the rows");
    mock.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_that_pass_are_not_counted() {
    let mock = Mock::start().await;
    let errors = [
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_ENOUGH_REPLICAS,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_NOT_LEADER_FOR_PARTITION,
        RDKafkaRespErr::RD_KAFKA_RESP_ERR_REQUEST_TIMED_OUT,
    ];
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &errors);
    mock.world.write("orders.v1", 10, 5).await;
    mock.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_with_a_fatal_error_is_made_anew_and_its_rows_are_sent_again() {
    let mock = Mock::start().await;
    mock.world.write("orders.v1", 10, 5).await;
    mock.relay.wait_for(|s| &s.published, 50).await;
    let error = RDKafkaRespErr::RD_KAFKA_RESP_ERR_OUT_OF_ORDER_SEQUENCE_NUMBER;
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[error; 4]);
    mock.world.write("orders.v1", 10, 5).await;
    becomes(true, async || mock.relay.get(|s| &s.rebuilds) > 0).await;
    mock.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_flight_are_purged_with_their_producer_when_the_lease_is_lost() {
    let mock = Mock::start().await;
    mock.cluster.broker_round_trip_time(1, Duration::from_secs(600)).expect("slow");
    mock.world.write("orders.v1", 10, 5).await;
    mock.relay.wait_for(|s| &s.in_flight, 10).await;
    // As after a pause longer than the lease: another relay took the buckets.
    sqlx::query!(
        "update messaging.relay_lease set owner = 'another', epoch = epoch + 1, expires_at = messaging.now() + interval '5 s'"
    )
    .execute(mock.world.pool())
    .await
    .expect("takes the leases");
    mock.relay.wait_for(|s| &s.buckets, 0).await;
    assert_eq!((mock.relay.get(|s| &s.rebuilds), mock.relay.get(|s| &s.in_flight)), (1, 0));
    assert_eq!(mock.world.count("sent_at is not null").await, 0, "nobody knows, so nothing is marked");

    mock.cluster.broker_round_trip_time(1, Duration::ZERO).expect("quick");
    sqlx::query!("update messaging.relay_lease set owner = null")
        .execute(mock.world.pool())
        .await
        .expect("frees");
    mock.relay.wait_for(|s| &s.published, 50).await;
    mock.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_that_the_broker_calls_invalid_dies_only_after_it_failed_alone() {
    let mock = Mock::start().await;
    let invalid = RDKafkaRespErr::RD_KAFKA_RESP_ERR_INVALID_RECORD;
    // Once: it is tried alone and passes.
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[invalid]);
    mock.world.append("orders.v1", "k", b"1").await;
    mock.relay.wait_for(|s| &s.published, 1).await;
    assert_eq!(mock.world.count("dead_at is not null").await, 0);
    // Twice: it is dead, and its key waits.
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[invalid; 2]);
    mock.world.append("orders.v1", "k", b"2").await;
    mock.world.wait_for_count("dead_at is not null and attempts = 2", 1).await;
    mock.world.append("orders.v1", "k", b"3").await;
    mock.world.append("orders.v1", "other", b"4").await;
    mock.relay.wait_for(|s| &s.published, 2).await;
    mock.world.wait_for_count("held_at is not null", 1).await;
    assert_eq!(mock.relay.get(|s| &s.inversions), 0);
    mock.relay.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_may_not_be_written_any_more_pauses_alone_and_goes_on_when_it_may() {
    let mock = Mock::start().await;
    let (topic, denied) =
        (mock.world.topics.name("orders.v1"), RDKafkaRespErr::RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    mock.cluster.topic_error(&topic, denied).expect("denies");
    mock.cluster.request_errors(RDKafkaApiKey::Produce, &[denied]);
    mock.world.append("orders.v1", "k", b"1").await;
    becomes(true, async || mock.relay.stats[0].paused().contains_key(&topic)).await;
    mock.world.write("points.v1", 10, 5).await;
    mock.relay.wait_for(|s| &s.published, 50).await;
    mock.relay.ready().await.expect("one topic does not make a relay useless");
    assert_eq!(mock.world.count("dead_at is not null or attempts > 0").await, 0);
    mock.cluster.topic_error(&topic, RDKafkaRespErr::RD_KAFKA_RESP_ERR_NO_ERROR).expect("permits");
    mock.relay.wait_for(|s| &s.published, 51).await;
    assert!(mock.relay.stats[0].paused().is_empty());
    mock.settles().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dead_partition_stalls_neither_the_others_of_its_topic_nor_other_topics() {
    let mock = Mock::of(2).await;
    let topic = mock.world.topics.name("orders.v1");
    mock.cluster.partition_leader(&topic, 0, Some(2)).expect("a leader of its own");
    mock.world.write("orders.v1", 40, 1).await;
    mock.relay.wait_for(|s| &s.published, 40).await;
    mock.cluster.broker_down(2).expect("down");
    // More than the whole window takes, all before what follows.
    mock.world.backlog("orders.v1", 4_000, 20_000).await;
    mock.world.write("points.v1", 20, 5).await;
    let dead = "topic like '%orders.v1' and bucket % 4 = 0";
    mock.world.wait_for_count(&format!("sent_at is null and not ({dead})"), 0).await;
    assert!(mock.world.count(&format!("sent_at is null and {dead}")).await > 1_000, "the dead one waits");
    // No floor waits for what stands, else each fetch would look at the whole of it; and what comes back is found again.
    becomes(true, async || mock.relay.get(|s| &s.floor) > 20_000).await;
    mock.cluster.broker_up(2).expect("up");
    mock.settles().await;
}
