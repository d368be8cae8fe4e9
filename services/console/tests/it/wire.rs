//! A record whose header name is not UTF-8 cannot be made with the client library, so it is written in Kafka's own
//! protocol: Produce version 3, one record batch of format 2.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use waybill_testkit::Topics;

/// Produces to partition 0 and awaits the acknowledgement.
pub(crate) async fn produce_with_header_name(topics: &Topics, topic: &str, name: &[u8], value: &[u8]) {
    let batch = batch(name, value);
    let topic = topics.name(topic);
    let mut body = Vec::new();
    body.extend(0_i16.to_be_bytes()); // Produce
    body.extend(3_i16.to_be_bytes()); // version
    body.extend(1_i32.to_be_bytes()); // correlation
    body.extend((-1_i16).to_be_bytes()); // client id
    body.extend((-1_i16).to_be_bytes()); // transactional id
    body.extend((-1_i16).to_be_bytes()); // acks: all
    body.extend(30_000_i32.to_be_bytes());
    body.extend(1_i32.to_be_bytes());
    body.extend((topic.len() as i16).to_be_bytes());
    body.extend(topic.as_bytes());
    body.extend(1_i32.to_be_bytes());
    body.extend(0_i32.to_be_bytes()); // partition
    body.extend((batch.len() as i32).to_be_bytes());
    body.extend(batch);
    let mut broker = TcpStream::connect(&topics.bootstrap).await.expect("broker");
    broker.write_all(&(body.len() as i32).to_be_bytes()).await.expect("broker");
    broker.write_all(&body).await.expect("broker");
    let mut answer = vec![0; broker.read_i32().await.expect("broker") as usize];
    broker.read_exact(&mut answer).await.expect("broker");
    // correlation, topics, name, partitions, partition, then the error.
    let error = 4 + 4 + 2 + topic.len() + 4 + 4;
    assert_eq!(answer[error..error + 2], [0, 0], "broker refused the record");
}

fn batch(name: &[u8], value: &[u8]) -> Vec<u8> {
    let mut record = vec![0, 0, 0]; // attributes, timestamp and offset deltas
    varint(&mut record, -1); // null key
    bytes(&mut record, value);
    varint(&mut record, 1);
    bytes(&mut record, name);
    bytes(&mut record, b"1");

    let now = chrono::Utc::now().timestamp_millis();
    let mut checked = Vec::new();
    checked.extend(0_i16.to_be_bytes()); // attributes
    checked.extend(0_i32.to_be_bytes()); // last offset delta
    checked.extend(now.to_be_bytes());
    checked.extend(now.to_be_bytes());
    checked.extend((-1_i64).to_be_bytes()); // producer id
    checked.extend((-1_i16).to_be_bytes());
    checked.extend((-1_i32).to_be_bytes());
    checked.extend(1_i32.to_be_bytes());
    bytes(&mut checked, &record);

    let mut batch = Vec::new();
    batch.extend(0_i64.to_be_bytes()); // base offset
    batch.extend((checked.len() as i32 + 9).to_be_bytes());
    batch.extend((-1_i32).to_be_bytes()); // leader epoch
    batch.push(2); // magic
    batch.extend(crc32c(&checked).to_be_bytes());
    batch.extend(checked);
    batch
}

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    varint(out, bytes.len() as i64);
    out.extend(bytes);
}

fn varint(out: &mut Vec<u8>, value: i64) {
    let mut rest = ((value << 1) ^ (value >> 63)) as u64;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}
