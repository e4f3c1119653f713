"""Bytes a second into a lake by one core: ``python -m benchmarks.bench_record --gigabytes 20``.

One ``eo run``, from its start to its end, reads a topic of 1,200-byte JSON records into an Iceberg
table: an S3 API, a REST catalog, exactly once. The process and its Spark have one core alone;
Kafka, the store and the catalog share another one. Then all ids are read back from the table.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import psutil
import yaml

from benchmarks.bench_fresh import adopt_orphans, timed
from benchmarks.suite.bucket import catalog_of, iceberg_table
from benchmarks.suite.records import CHUNK, SPARK_SCHEMA, frames, values
from benchmarks.suite.room import STATE, linked
from benchmarks.suite.topic import create, dealt_out, put
from eo_pipeline.embedded.jars import kafka_broker_jars, spark_s3_jars
from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.object_store import EmbeddedObjectStore
from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.spark.connector import spark_connector_jars
from eo_pipeline.storage.config import Storage
from tests.support.rest_catalog import RestCatalogServer, catalog_at

RECORD_BYTES = 1_200
PARTITIONS = 8
#: Tasks that share the core: one works while another waits for the store.
TASKS = 3
TOPIC, BUCKET, TABLE = "record", "record", "lake.events"


def records(count: int) -> Iterator[tuple[bytes, int]]:
    """Yield values and their partitions: the suite's records, with longer notes of noise."""
    noise = np.random.default_rng(0).bytes(CHUNK * RECORD_BYTES // 2).hex()
    notes = pl.Series([noise[n * RECORD_BYTES : (n + 1) * RECORD_BYTES] for n in range(CHUNK)])
    for frame in frames(0, count):
        short = frame.with_columns(note=pl.lit(""))
        room = RECORD_BYTES - pl.Series([len(value) for value in values(short)])
        longer = frame.with_columns(note=notes[: len(frame)].str.head(room))
        yield from dealt_out(values(longer), PARTITIONS)


def pin(pid: int, core: int) -> None:
    """Give a process, and all that it started, one core."""
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        for thread in each.threads():
            os.sched_setaffinity(thread.id, {core})


def check(catalog: RestCatalogServer, storage: Storage, count: int) -> None:
    """Compare the table's ids with those of ``count`` records.

    Raises:
        SystemExit: they are not the same, each once.
    """
    table = iceberg_table(catalog, storage, TABLE)
    ids = pl.Series(table.scan(selected_fields=("id",)).to_arrow().column("id")).sort()
    if not ids.equals(pl.int_range(count, eager=True)):
        raise SystemExit(f"{count:,} records, and {len(ids):,} rows of {ids.n_unique():,} ids")


def document(kafka: EmbeddedKafka, storage: Storage, catalog: RestCatalogServer) -> dict[str, Any]:
    """Return the pipeline's document."""
    source = {"bootstrap_servers": kafka.bootstrap_servers, "topics": [TOPIC]}
    secrets = ("access_key_id", "secret_access_key")
    return {
        "name": "record",
        "source": {**source, "value_schema": SPARK_SCHEMA},
        "sink": {
            "type": "iceberg",
            "table": TABLE,
            "location": f"s3://{BUCKET}/events",
            "catalog": catalog_at(catalog.uri),
        },
        "storage": {"endpoint": storage.endpoint}
        | {name: getattr(storage, name).get_secret_value() for name in secrets},
        "staging": f"s3://{BUCKET}/staging",
        "spark": {"master": f"local[{TASKS}]", "warm": False},
    }


def main() -> None:
    """Fill the topic, load it, read the table back."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=20.0)
    parser.add_argument("--folder", type=Path, help="with room for 1.6 times as much")
    parser.add_argument("--cores", type=int, nargs=2, default=(0, 1), help="theirs, and its own")
    asked = parser.parse_args()
    adopt_orphans()
    count = int(asked.gigabytes * 1e9 / RECORD_BYTES)
    theirs, own = asked.cores
    folder = Path(tempfile.mkdtemp(prefix="eo-record-", dir=asked.folder))
    try:
        with ExitStack() as stack:
            kafka = EmbeddedKafka(folder / "kafka", jars=kafka_broker_jars(STATE))
            store = EmbeddedObjectStore(folder / "store")
            stack.enter_context(kafka)
            stack.enter_context(store)
            catalog = catalog_of(store, store.bucket(BUCKET), STATE)
            stack.enter_context(catalog)
            create(kafka.bootstrap_servers, TOPIC, PARTITIONS)
            put(kafka.bootstrap_servers, TOPIC, records(count))
            for server in (kafka, store, catalog):
                pin(server.pid, theirs)
            path = folder / "pipeline.yaml"
            path.write_text(yaml.safe_dump(document(kafka, store.storage, catalog)))
            jars = linked(folder / "jars", (*spark_connector_jars(STATE), *spark_s3_jars(STATE)))
            environment = os.environ | {JARS_VARIABLE: str(jars)}
            eo = [sys.executable, "-m", "eo_pipeline.cli", "run", "-f", str(path)]
            wall_s, cpu_s = timed(["taskset", "--cpu-list", str(own), *eo], environment)
            check(catalog, store.storage, count)
        size = count * RECORD_BYTES
        sys.stdout.write(
            f"{count:,} records, {size / 1e9:.1f} GB in {wall_s:.0f} s: "
            f"{size / 1e6 / wall_s:.1f} MB/s, {count / wall_s:,.0f} records/s; {cpu_s:.0f} CPU s\n"
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
