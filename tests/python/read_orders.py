#!/usr/bin/env python3
"""Reads `orders.v1` without any of this repository's code: other languages need the records and `schemas/history` only.

A value is Avro single-object encoding: the bytes C3 01, the CRC-64-AVRO fingerprint of the writer's schema (8 bytes,
little-endian), then the datum. The fingerprint finds the schema among `schemas/history/orders.v1/*.avsc`.

Prints one line of JSON for each record, from the beginning, until `--count` records were read.
"""

import argparse
import datetime
import io
import json
import pathlib
import sys
import uuid

import confluent_kafka
import fastavro
from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form

MARKER = b"\xc3\x01"
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


def load(folder):
    """Every published schema by its fingerprint, as it lies in the records."""
    schemas = {}
    for file in sorted(pathlib.Path(folder).glob("*.avsc")):
        schema = json.loads(file.read_text(encoding="utf-8"))
        print_of = fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO")
        schemas[bytes.fromhex(print_of)] = parse_schema(schema)
    return schemas


def decode(value, schemas):
    """The event in a value; raises ValueError for what is none."""
    if value is None or value[:2] != MARKER or len(value) < 10:
        raise ValueError("no Avro single-object encoding")
    schema = schemas.get(value[2:10])
    if schema is None:
        raise ValueError(f"unknown schema {value[2:10].hex()}")
    rest = io.BytesIO(value[10:])
    event = fastavro.schemaless_reader(rest, schema)
    if rest.read(1):
        raise ValueError("bytes behind the event")
    return event


def plain(value):
    """JSON has neither UUIDs nor times; times become microseconds since 1970."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, datetime.datetime):
        return (value - EPOCH) // datetime.timedelta(microseconds=1)
    raise TypeError(type(value).__name__)


def read(consumer, count, schemas):
    """Prints the first `count` records that come."""
    while count > 0:
        record = consumer.poll(20.0)
        if record is None:
            sys.exit("no record came within 20 s")
        if record.error():
            sys.exit(str(record.error()))
        headers = {name: value and value.decode() for name, value in record.headers() or []}
        line = {
            "key": record.key() and record.key().decode(),
            "offset": record.offset(),
            "headers": headers,
            "event": decode(record.value(), schemas),
        }
        print(json.dumps(line, default=plain))
        count -= 1


def main():
    """Reads what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True, help="bootstrap.servers of Kafka")
    parser.add_argument("--topic", default="orders.v1", help="with the installation's prefix")
    parser.add_argument("--schemas", required=True, help="schemas/history/orders.v1")
    parser.add_argument("--count", type=int, required=True, help="records to read")
    given = parser.parse_args()
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": given.bootstrap,
            # Assigned by hand and never committed: the name only has to be there.
            "group.id": "read-orders",
            "enable.auto.commit": False,
        }
    )
    partitions = consumer.list_topics(given.topic, timeout=20).topics[given.topic].partitions
    beginning = confluent_kafka.OFFSET_BEGINNING
    consumer.assign([confluent_kafka.TopicPartition(given.topic, number, beginning) for number in partitions])
    try:
        read(consumer, given.count, load(given.schemas))
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
