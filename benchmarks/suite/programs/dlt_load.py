"""dlt from Kafka into PostgreSQL: a run for each line of stdin.

A line is ``{"bootstrap", "topic", "dsn", "table", "folder"}``. The topic's positions are in dlt's
own state, which it keeps beside the table. This file runs in dlt's environment, not in ours.
"""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Iterator
from typing import Any

import dlt
import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition
from pyarrow import json as arrow_json

POLL = 50_000
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("customer", pa.string()),
        ("country", pa.string()),
        ("amount", pa.float64()),
        ("at_ms", pa.int64()),
        ("note", pa.string()),
    ]
)


def records(bootstrap: str, topic: str) -> Iterator[pa.Table]:
    """Everything that is new, as Arrow tables; the positions go into the resource's state."""
    positions = dlt.current.resource_state().setdefault("positions", {})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "dlt",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": 10,
            "queued.max.messages.kbytes": 262_144,
        }
    )
    ends = {}
    starts = []
    for part in consumer.list_topics(topic, timeout=30).topics[topic].partitions:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=30)
        start = int(positions.get(str(part), low))
        if start < high:
            ends[part] = high
            starts.append(TopicPartition(topic, part, start))
    consumer.assign(starts)
    while ends:
        values = []
        messages: list[Any] = consumer.consume(POLL, timeout=0.05)
        for message in messages:
            if message.error():
                raise SystemExit(str(message.error()))
            part, offset = message.partition(), message.offset()
            if offset < ends.get(part, 0):
                values.append(message.value())
                positions[str(part)] = offset + 1
                if offset + 1 == ends[part]:
                    del ends[part]
        if values:
            options = arrow_json.ParseOptions(explicit_schema=SCHEMA)
            yield arrow_json.read_json(io.BytesIO(b"\n".join(values)), parse_options=options)
    consumer.close()


def main() -> None:
    """A run for each line."""
    os.environ["RUNTIME__DLTHUB_TELEMETRY"] = "false"
    for line in sys.stdin:
        job = json.loads(line)
        started = time.perf_counter()
        # dlt wants a password; this server asks for none
        credentials = job["dsn"].replace("postgres@", "postgres:none@")
        pipeline = dlt.pipeline(
            pipeline_name=job["table"],
            pipelines_dir=job["folder"],
            destination=dlt.destinations.postgres(credentials),
            dataset_name="public",
        )
        new = records(job["bootstrap"], job["topic"])
        source = dlt.resource(new, name="records", write_disposition="append")
        # CSV goes through COPY; the default is INSERT
        info = pipeline.run(source, table_name=job["table"], loader_file_format="csv")
        info.raise_on_failed_jobs()
        sys.stdout.write(json.dumps({"seconds": time.perf_counter() - started}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
