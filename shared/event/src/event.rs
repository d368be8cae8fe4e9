//! What a type must say to be published: its topic, its schemas, its name and its key.

use serde::{Serialize, de::DeserializeOwned};

use crate::Codec;

/// A message type. One topic carries one `Event`, whose [`event_type`](Event::event_type) may differ per message.
///
/// The serde name of the struct must be the name of the Avro record, and a field added later needs a serde default
/// equal to the schema's default: decoding uses the writer's schema and does not resolve.
pub trait Event: Serialize + DeserializeOwned + Send + Sync + Sized + 'static {
    /// Topic without the installation's prefix, for example `orders.v1`.
    const TOPIC: &'static str;
    /// Kind of thing the key names, for example `order`; becomes `aggregatetype` in the outbox.
    const AGGREGATE: &'static str;

    /// The topic's schemas, parsed once per process.
    fn codec() -> &'static Codec;
    /// `ce_type`, for example `waybill.order.placed`.
    fn event_type(&self) -> String;
    /// Message key: the aggregate's id as text. Events of one key keep their order.
    fn key(&self) -> String;
}
