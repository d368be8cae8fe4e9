//! The relay against real PostgreSQL and Kafka.

mod dead;
mod failures;
mod floors;
mod leases;
mod order;
mod outage;
mod plans;
mod pooler;
mod records;
mod republish;
mod support;
mod topics;
mod upkeep;
