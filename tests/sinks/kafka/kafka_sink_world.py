"""A Kafka sink in a topic of its own, and somebody else who reads it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.registry import EmbeddedRegistry
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.kafka import KafkaSink
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import first_entry
from tests.sinks.kafka.kafka_world import read
from tests.support.engine import SCHEMA, Bench, Table, Topic
from tests.support.registry import QUICKLY

COMMITTED = CommitOutcome.COMMITTED


def staged(ids: range, **columns: Any) -> StagedOutput:
    checkpoint = {"_eo_checkpoint": [1] * len(ids)}
    return StagedOutput(
        rows=StagedTable.in_memory(pa.table({"id": list(ids), **columns, **checkpoint}))
    )


def by_schemas(bench: Bench, registry: EmbeddedRegistry, form: str) -> Bench:
    """``bench`` with keys and values in a format whose schemas the ``registry`` has."""
    known = {"url": registry.url, "client": QUICKLY}
    told = {"key": "id", "key_format": form, "value_format": form, "registry": known}
    bench.config["sink"] |= told
    return bench


@dataclass
class World:
    """A topic, the sink that writes to it, and a reader that is not the pipeline's."""

    sink: KafkaSink

    def changed(self, **settings: Any) -> World:
        return World(KafkaSink.model_validate({**self.sink.model_dump(), **settings}))

    def open(self, pipeline: str = "p") -> SinkSession:
        return self.sink.open(pipeline)

    def begin(self, session: SinkSession, pipeline: str = "p") -> LedgerEntry:
        entry = first_entry(pipeline)
        assert session.publish(entry, StagedOutput()) is COMMITTED
        return entry

    def read(self, isolation: str = "read_committed") -> list[Any]:
        return read(self.sink.bootstrap_servers, self.sink.topic, isolation)

    def values(self, isolation: str = "read_committed") -> list[bytes]:
        return [message.value() for message in self.read(isolation)]

    def count(self, isolation: str = "read_committed") -> int:
        return len(self.read(isolation))


def kafka_bench(events: Topic, topic: str, folder: Path) -> Bench:
    """A pipeline from ``events`` to ``topic``, 100 offsets a checkpoint."""
    servers = {"bootstrap_servers": events.bootstrap_servers}
    config = {
        "name": "events",
        "source": {**servers, "topics": [events.name], "value_schema": SCHEMA, "max_records": 100},
        "sink": {"type": "kafka", **servers, "topic": topic},
        "staging": str(folder / "staging"),
        "inline_records": 0,
    }
    return Bench(events, Table(dsn=""), config)


@pytest.fixture
def admin(kafka: EmbeddedKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})


@pytest.fixture
def world(kafka: EmbeddedKafka, topic: str) -> World:
    settings = {"bootstrap_servers": kafka.bootstrap_servers, "topic": topic}
    return World(KafkaSink.model_validate(settings))


@pytest.fixture
def session(world: World) -> Iterator[SinkSession]:
    with world.open() as session:
        yield session
