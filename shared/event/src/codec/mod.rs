//! Avro single-object encoding: `C3 01`, the schema's CRC-64-AVRO fingerprint little-endian, the datum.
//!
//! Promises: bytes that are cut short, go on too long, or come from an unknown schema are errors, never a value;
//! nothing panics, recurses or allocates beyond [`MAX_VALUE_BYTES`] on account of the bytes.
//! Reading uses the schema that the bytes were *written* with and fills newer fields from serde defaults.

mod error;
mod evolution;
mod schema;

use std::{
    collections::HashMap,
    fmt,
    io::{self, Read},
};

use apache_avro::{Schema, reader::datum::GenericDatumReader, writer::datum::GenericDatumWriter};
use serde_json::Value;

pub use error::{DecodeError, EncodeError, SchemaError};

use crate::{Event, MAX_VALUE_BYTES};

const MARKER: [u8; 2] = [0xC3, 0x01];
const HEADER_BYTES: usize = 10;
/// Bound of a library message in an error: it may print a whole schema.
const MAX_DETAIL_CHARS: usize = 300;

/// The schemas of one topic, parsed once, with a reader for each and a writer for the newest.
pub struct Codec {
    topic: String,
    header: [u8; HEADER_BYTES],
    writer: GenericDatumWriter<'static>,
    /// Oldest first; the last is the newest.
    history: Vec<(u64, String)>,
    readers: HashMap<u64, GenericDatumReader<'static>>,
}

impl Codec {
    /// Parses and checks the schemas, oldest first. They stay in memory for the life of the process (readers borrow
    /// them): make one codec per topic, in a static.
    ///
    /// # Errors
    /// Avro was used for reading before, with a larger allocation bound. Else names the schema, the field and the rule: not valid Avro, another record than the newest, aliases, `order`,
    /// unions other than optional fields with default null, defaults of bytes, recursive types, items of zero bytes; and between
    /// two schemas a changed type, a field added or removed without a default, a removed
    /// field that holds a record or enum, or no difference in bytes at all.
    pub fn new(topic: &str, schemas: &[&str]) -> Result<Self, SchemaError> {
        let fail = |number, problem| SchemaError { topic: topic.to_owned(), number, problem };
        // Only the first call in the process counts (and any decoding before it, with 512 MiB).
        let bound = apache_avro::util::max_allocation_bytes(MAX_VALUE_BYTES);
        if bound > MAX_VALUE_BYTES {
            return Err(fail(
                0,
                format!("something else let Avro allocate {bound} bytes before this codec was made"),
            ));
        }
        let mut codec = Parsed::default();
        for (number, json) in (1..).zip(schemas) {
            codec.add(json).map_err(|problem| fail(number, problem))?;
        }
        let Parsed { history, readers, newest, .. } = codec;
        let (fingerprint, schema) = newest.ok_or_else(|| fail(0, "no schema at all".into()))?;
        let writer = GenericDatumWriter::builder(schema).human_readable(true).build();
        let writer = writer.map_err(|error| fail(schemas.len(), error.to_string()))?;
        let mut header = [0; HEADER_BYTES];
        header[..2].copy_from_slice(&MARKER);
        header[2..].copy_from_slice(&fingerprint.to_le_bytes());
        Ok(Self { topic: topic.to_owned(), header, writer, history, readers })
    }

    /// [`new`](Self::new) for schemas embedded in the binary.
    ///
    /// # Panics
    /// When a schema is refused: a fault of the build, which the tests of the event's crate meet first.
    #[must_use]
    pub fn embedded(topic: &str, schemas: &[&str]) -> Self {
        Self::new(topic, schemas).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Topic without prefix.
    #[must_use]
    pub fn topic(&self) -> &str {
        &self.topic
    }

    /// The first ten bytes of everything written.
    #[must_use]
    pub const fn header(&self) -> [u8; 10] {
        self.header
    }

    /// Every known schema, oldest first: fingerprint and JSON.
    pub fn history(&self) -> impl DoubleEndedIterator<Item = (u64, &str)> {
        self.history.iter().map(|(fingerprint, json)| (*fingerprint, json.as_str()))
    }

    fn encode<E: Event>(&self, event: &E) -> Result<Vec<u8>, EncodeError> {
        let mut bytes = Vec::with_capacity(512);
        bytes.extend_from_slice(&self.header);
        self.writer.write_ser(&mut bytes, event).map_err(|error| EncodeError::Schema(detail(&error)))?;
        match bytes.len() {
            size if size > MAX_VALUE_BYTES => Err(EncodeError::TooLarge { size, limit: MAX_VALUE_BYTES }),
            _ => Ok(bytes),
        }
    }

    fn decode<E: Event>(&self, bytes: &[u8]) -> Result<E, DecodeError> {
        if bytes.len() > MAX_VALUE_BYTES {
            return Err(DecodeError::TooLarge { size: bytes.len(), limit: MAX_VALUE_BYTES });
        }
        // Another framing (Confluent's begins with 00) is one more arm here.
        match bytes {
            [] => Err(DecodeError::Empty),
            [0xC3, 0x01, rest @ ..] => match rest.split_first_chunk() {
                Some((fingerprint, datum)) => {
                    self.datum(u64::from_le_bytes(*fingerprint), datum, bytes.len())
                }
                None => Err(DecodeError::Truncated(bytes.len())),
            },
            [0xC3] => Err(DecodeError::Truncated(1)),
            _ => Err(DecodeError::UnknownFrame { first: bytes.iter().take(HEADER_BYTES).copied().collect() }),
        }
    }

    fn datum<E: Event>(&self, fingerprint: u64, datum: &[u8], size: usize) -> Result<E, DecodeError> {
        let reader = self.readers.get(&fingerprint).ok_or(DecodeError::UnknownFingerprint(fingerprint))?;
        let mut input = Input { rest: datum, short: false };
        match reader.read_deser(&mut input) {
            Ok(event) if input.rest.is_empty() => Ok(event),
            Ok(_) => Err(DecodeError::TrailingBytes(input.rest.len())),
            Err(_) if input.short => Err(DecodeError::Truncated(size)),
            Err(error) => Err(DecodeError::Malformed(detail(&error))),
        }
    }
}

impl fmt::Debug for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let history: Vec<_> = self.history.iter().map(|(print, _)| format!("{print:016x}")).collect();
        f.debug_struct("Codec").field("topic", &self.topic).field("history", &history).finish_non_exhaustive()
    }
}

/// Writes an event with the newest schema of its topic.
///
/// # Errors
/// The struct does not fit its schema, or the value is larger than [`MAX_VALUE_BYTES`].
pub fn encode<E: Event>(event: &E) -> Result<Vec<u8>, EncodeError> {
    E::codec().encode(event)
}

/// Reads an event written with any schema of its topic's history.
///
/// # Errors
/// Whatever is not exactly one whole event; see [`DecodeError`]. No input panics.
pub fn decode<E: Event>(bytes: &[u8]) -> Result<E, DecodeError> {
    E::codec().decode(bytes)
}

/// A history while it is read, oldest first.
#[derive(Default)]
struct Parsed {
    values: Vec<Value>,
    history: Vec<(u64, String)>,
    readers: HashMap<u64, GenericDatumReader<'static>>,
    newest: Option<(u64, &'static Schema)>,
}

impl Parsed {
    fn add(&mut self, json: &str) -> Result<(), String> {
        let value: Value = serde_json::from_str(json).map_err(|error| error.to_string())?;
        schema::check(&value)?;
        let parsed = Schema::parse(&value).map_err(|error| error.to_string())?;
        let fingerprint = schema::fingerprint(&value)?;
        if self.newest.is_some_and(|(_, older)| older.name() != parsed.name()) {
            return Err("the record has another name than in the schema before".into());
        }
        if self.readers.contains_key(&fingerprint) {
            return Err(
                "no reader can tell it from an earlier schema: docs and defaults have no fingerprint".into(),
            );
        }
        self.values.iter().try_for_each(|older| evolution::check(older, &value))?;
        let schema: &'static Schema = Box::leak(Box::new(parsed));
        let reader = GenericDatumReader::builder(schema).human_readable(true).build();
        self.readers.insert(fingerprint, reader.map_err(|error| error.to_string())?);
        self.history.push((fingerprint, json.to_owned()));
        self.values.push(value);
        self.newest = Some((fingerprint, schema));
        Ok(())
    }
}

fn detail(error: &apache_avro::Error) -> String {
    error.to_string().chars().take(MAX_DETAIL_CHARS).collect()
}

/// A reader that remembers whether more was wanted than there is: the library's errors do not always tell.
struct Input<'a> {
    rest: &'a [u8],
    short: bool,
}

impl Read for Input<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.short |= buffer.len() > self.rest.len();
        self.rest.read(buffer)
    }
}
