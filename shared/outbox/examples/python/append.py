"""Issues an invoice: its row and its event in one statement.

    append.py postgres://…        writes to this database and prints what it wrote as JSON
    append.py --hex INVOICE_ID    prints the event's bytes in hex and writes nothing: for append.sql
"""

import io
import json
import os
import secrets
import sys
import time
import uuid
from datetime import datetime, timezone
from pathlib import Path

import fastavro
import psycopg
from fastavro.schema import fingerprint, load_schema, to_parsing_canonical_form

EXAMPLES = Path(__file__).resolve().parent.parent

# The newest schema that every reader already has.
SCHEMA = load_schema(EXAMPLES / "invoices" / "2.avsc")
HEADER = b"\xc3\x01" + bytes.fromhex(fingerprint(to_parsing_canonical_form(SCHEMA), "CRC-64-AVRO"))

STATEMENT = """
    with i as (
        insert into invoice (id, version, currency, total)
        values (%(invoice_id)s, %(version)s, %(currency)s, %(total)s)
        returning id
    )
    select messaging.append(
        id => %(message_id)s,
        aggregatetype => 'invoice',
        aggregateid => i.id::text,
        type => %(event_type)s,
        topic => %(topic)s,
        payload => %(payload)s,
        traceparent => %(traceparent)s
    )
    from i
"""


def encode(event: dict) -> bytes:
    """Avro single-object encoding: C3 01, the schema's fingerprint, the datum."""
    datum = io.BytesIO()
    # strict: a misspelt field is an error, not a default.
    fastavro.schemaless_writer(datum, SCHEMA, event, strict=True)
    return HEADER + datum.getvalue()


def uuid7() -> uuid.UUID:
    """Ordered by time, as consumers index it. Python 3.14 has uuid.uuid7."""
    milliseconds = time.time_ns() // 1_000_000
    bits = milliseconds << 80 | 0x7 << 76 | secrets.randbits(12) << 64 | 0b10 << 62 | secrets.randbits(62)
    return uuid.UUID(int=bits)


def issued(invoice_id: uuid.UUID) -> dict:
    return {
        "invoice_id": invoice_id,
        "version": 1,
        "type": "issued",
        "currency": "KRW",
        "total": 9000,
        "paid": 0,
        "occurred_at": datetime.now(timezone.utc),
        "discount": 0,
    }


def append(connection: psycopg.Connection, event: dict) -> dict:
    """Writes the invoice and its event; commits when the caller's block ends well."""
    message_id = uuid7()
    values = event | {
        "message_id": message_id,
        "event_type": f"example.invoice.{event['type']}",
        "topic": os.environ.get("TOPIC_PREFIX", "") + "invoices.v1",
        "payload": encode(event),
        # With OpenTelemetry: carrier["traceparent"] after propagate.inject(carrier).
        "traceparent": os.environ.get("TRACEPARENT"),
    }
    (seq,) = connection.execute(STATEMENT, values).fetchone()
    return {"seq": seq, "id": message_id, "event": event}


def main() -> None:
    if sys.argv[1:2] == ["--hex"]:
        print(encode(issued(uuid.UUID(sys.argv[2]))).hex())
        return
    with psycopg.connect(sys.argv[1]) as connection:
        connection.execute((EXAMPLES / "invoices" / "invoice.sql").read_text())
        written = append(connection, issued(uuid7()))
    print(json.dumps(written, default=lambda value: value.isoformat() if isinstance(value, datetime) else str(value)))


if __name__ == "__main__":
    main()
