//! What lies in a broker's own files: the only place that shows how a batch is compressed.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::Broker;

/// Codecs of Kafka by their numbers in a batch.
pub const CODECS: [&str; 5] = ["none", "gzip", "snappy", "lz4", "zstd"];

/// A batch of records as it is stored.
#[derive(Debug, Clone)]
pub struct Batch {
    /// One of [`CODECS`].
    pub codec: &'static str,
    /// Its records.
    pub records: i32,
    segment: PathBuf,
    /// Where the byte lies that names the codec.
    attributes: u64,
}

impl Broker {
    /// The batches of a topic, with prefix, by partition and in order.
    ///
    /// # Panics
    /// When the broker's files cannot be read.
    pub fn batches(&self, topic: &str) -> Vec<Batch> {
        (0..)
            .map(|partition| self.data().join(format!("{topic}-{partition}")))
            .take_while(|folder| folder.is_dir())
            .flat_map(|folder| batches(folder.join("00000000000000000000.log")))
            .collect()
    }
}

impl Batch {
    /// Names another codec, whether there is one of that number or not; what is in the batch stays as it is.
    ///
    /// # Panics
    /// When the broker's file cannot be written.
    pub fn name_codec(&self, number: u8) {
        let file = OpenOptions::new().read(true).write(true).open(&self.segment).expect("segment");
        let mut attributes = [0];
        file.read_exact_at(&mut attributes, self.attributes).expect("attributes");
        file.write_all_at(&[attributes[0] & !7 | number], self.attributes).expect("attributes");
    }
}

/// The format 2 of batches: base offset, length, epoch, magic, checksum, attributes, …, number of records.
fn batches(segment: PathBuf) -> Vec<Batch> {
    let bytes = std::fs::read(&segment).expect("segment");
    let number = |at: usize| i32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (mut found, mut at) = (Vec::new(), 0);
    while at + 61 <= bytes.len() && number(at + 8) > 0 {
        assert_eq!(bytes[at + 16], 2, "format of the batch at {at} of {}", segment.display());
        found.push(Batch {
            codec: CODECS[usize::from(bytes[at + 22] & 7)],
            records: number(at + 57),
            segment: segment.clone(),
            attributes: at as u64 + 22,
        });
        at += 12 + number(at + 8) as usize;
    }
    found
}
