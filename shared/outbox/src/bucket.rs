//! The bucket of a key, and the partition that Kafka's own partitioner gives it.

/// Number of buckets. Fixed for ever: rows that wait would change their owner.
pub const BUCKETS: i16 = 64;

/// Bucket of a key, 0 to 63: murmur2 of its UTF-8 bytes with the sign bit cleared, modulo 64. Equal to the SQL
/// function `messaging.bucket(text)`, and to Java's `Utils.toPositive(Utils.murmur2(key)) % 64`.
pub fn bucket(key: &str) -> i16 {
    (positive(key) % BUCKETS as u32) as i16
}

/// Partition that the partitioner `murmur2_random` (Java's default) chooses for a key, for a topic with
/// `partitions` partitions. Zero partitions give partition 0.
pub fn partition(key: &str, partitions: u32) -> u32 {
    positive(key) % partitions.max(1)
}

fn positive(key: &str) -> u32 {
    murmur2(key.as_bytes()) & 0x7fff_ffff
}

/// MurmurHash2, 32 bit, seed 0x9747b28c, as in `org.apache.kafka.common.utils.Utils.murmur2`.
fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    let mut h = 0x9747_b28c ^ data.len() as u32;
    let mut words = data.chunks_exact(4);
    for word in &mut words {
        let mut k = u32::from_le_bytes([word[0], word[1], word[2], word[3]]).wrapping_mul(M);
        k ^= k >> 24;
        h = h.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    let rest = words.remainder();
    for (i, byte) in rest.iter().enumerate() {
        h ^= u32::from(*byte) << (8 * i);
    }
    if !rest.is_empty() {
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ (h >> 15)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The vectors of Apache Kafka's own `UtilsTest.testMurmur2`.
    pub(crate) const JAVA: [(&str, i32); 6] = [
        ("21", -973_932_308),
        ("foobar", -790_332_482),
        ("a-little-bit-long-string", -985_981_536),
        ("a-little-bit-longer-string", -1_486_304_829),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
        ("abc", 479_470_107),
    ];

    #[test]
    fn the_hash_is_javas() {
        for (key, hash) in JAVA {
            assert_eq!(murmur2(key.as_bytes()) as i32, hash, "{key}");
        }
    }

    #[test]
    fn a_bucket_feeds_one_partition_of_every_topic_whose_partition_count_divides_64() {
        for n in 0..500 {
            let key = format!("key-{n}");
            for partitions in [1, 2, 4, 8, 16, 32, 64] {
                assert_eq!(partition(&key, partitions), bucket(&key) as u32 % partitions);
            }
        }
    }
}
