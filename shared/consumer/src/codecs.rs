//! Which codecs librdkafka can decompress. A build without one gets records of other teams that it cannot read.

use rdkafka::ClientConfig;

/// What producers and topics of Kafka may use, by the number that a batch has, from 1.
const CODECS: [&str; 4] = ["gzip", "snappy", "lz4", "zstd"];

/// Those that librdkafka was built without.
pub(crate) fn missing() -> Vec<&'static str> {
    let built = ClientConfig::new().create_native_config().and_then(|config| config.get("builtin.features"));
    let built = built.unwrap_or_default();
    CODECS.into_iter().filter(|codec| built.split(',').all(|feature| feature != *codec)).collect()
}

/// What is said of a partition whose next records cannot be decompressed, from what the client says of them.
pub(crate) fn unreadable(reason: &str) -> String {
    let names: Vec<_> = (1..).zip(CODECS).map(|(number, name)| format!("0x{number} {name}")).collect();
    let missing = match missing() {
        none if none.is_empty() => "none of them".to_owned(),
        some => some.join(", "),
    };
    format!(
        "the client cannot decompress what comes next: {reason} ({}; this build of librdkafka lacks {missing})",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In every build that is tested, and so in every one that is made of the same manifest.
    #[test]
    fn every_codec_is_built_in() {
        assert_eq!(missing(), Vec::<&str>::new());
    }
}
