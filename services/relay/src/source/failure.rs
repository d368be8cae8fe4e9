//! What a failed delivery means for the row.

use rdkafka::types::RDKafkaErrorCode as Code;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The topic is unknown or not permitted: the topic pauses, nothing is counted.
    Topic,
    /// This row will never be taken as it is.
    Row,
    /// The producer is of no use any more.
    Producer,
    /// An outage, or nobody knows whether the row was written: it is sent again, nothing is counted.
    Outage,
}

/// Classifies an error of the client or the broker.
///
/// Rule: only errors that are known to be about the record itself can make a row dead. Everything else, also what
/// is not known yet, is an outage: hours without a broker must not turn a backlog into dead rows.
pub(crate) fn classify(code: Code) -> Failure {
    match code {
        Code::UnknownTopicOrPartition
        | Code::UnknownTopic
        | Code::UnknownPartition
        | Code::TopicAuthorizationFailed
        | Code::InvalidTopic => Failure::Topic,
        Code::MessageSizeTooLarge
        | Code::MessageBatchTooLarge
        | Code::InvalidMessage
        | Code::InvalidMessageSize
        | Code::InvalidRecord
        | Code::InvalidTimestamp
        | Code::PolicyViolation => Failure::Row,
        Code::Fatal | Code::OutOfOrderSequenceNumber | Code::InvalidProducerEpoch | Code::Fenced => {
            Failure::Producer
        }
        _ => Failure::Outage,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outages_and_purges_are_never_about_the_row() {
        for code in [
            Code::BrokerTransportFailure,
            Code::AllBrokersDown,
            Code::NotEnoughReplicas,
            Code::NotEnoughReplicasAfterAppend,
            Code::RequestTimedOut,
            Code::MessageTimedOut,
            Code::PurgeQueue,
            Code::PurgeInflight,
            Code::QueueFull,
            Code::ClusterAuthorizationFailed,
            Code::Unknown,
        ] {
            assert_eq!(classify(code), Failure::Outage, "{code:?}");
        }
        assert_eq!(classify(Code::MessageSizeTooLarge), Failure::Row);
        assert_eq!(classify(Code::UnknownTopicOrPartition), Failure::Topic);
        assert_eq!(classify(Code::Fatal), Failure::Producer);
    }
}
