//! The console against real PostgreSQL and Kafka.
