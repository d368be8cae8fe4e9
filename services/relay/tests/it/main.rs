//! The relay against real PostgreSQL and Kafka.

mod failures;
mod leases;
mod order;
mod outage;
mod plans;
mod records;
mod support;
mod topics;
mod upkeep;
