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
        let world = World::new(&[]).await;
        let cluster = MockCluster::new(1).expect("mock cluster");
        cluster.create_topic(&world.topics.name("orders.v1"), 4, 1).expect("topic");
        let sources = [("order", &world.database)];
        let settings = ["--relay-lease-renew", "100ms"];
        let relay = world.relay_of(&sources, &cluster.bootstrap_servers(), &settings).await;
        relay.wait_for(|s| &s.buckets, 64).await;
        Self { world, cluster, relay }
    }

    /// Every row is marked; nothing died, nothing was overtaken.
    async fn settles(self) {
        self.world.wait_for_count("sent_at is null", 0).await;
        assert_eq!(self.world.count("dead_at is not null or held_at is not null or attempts > 0").await, 0);
        assert_eq!(self.relay.get(|s| &s.inversions), 0);
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
