"""What nobody can be faster than: reading a topic alone, and COPY alone."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import psycopg

from benchmarks.suite.jars import Jar, resolved
from benchmarks.suite.peers.peer import Mode, Peer
from benchmarks.suite.records import COLUMNS, frames
from benchmarks.suite.room import STATE, Room
from benchmarks.suite.stores import Store
from benchmarks.suite.target import Target
from benchmarks.suite.topic import Topic
from eo_pipeline.embedded.jars import KAFKA_VERSION, kafka_broker_jars
from eo_pipeline.spark.java import find_java

_BLOCK = 1 << 20
_TOOLS = Jar("org.apache.kafka", "kafka-tools", KAFKA_VERSION, alone=False)


class ReadAlone(Peer):
    """Kafka's own consumer, whose records go nowhere."""

    PROGRAM: ClassVar[str] = "limit: kafka-consumer-perf-test"
    PROMISE: ClassVar[str] = "None: reads a topic and discards it."
    SETTINGS: ClassVar[str] = "One consumer, defaults; a whole process."

    def __init__(self, room: Room) -> None:
        super().__init__(room, Store.NOWHERE)

    @property
    def name(self) -> str:
        return self.PROGRAM

    def versions(self) -> Mapping[str, str]:
        return {"Kafka": KAFKA_VERSION}

    def install(self) -> None:
        self._tools()

    def _tools(self) -> Sequence[Path]:
        """What the broker's jars lack."""
        return resolved([_TOOLS], self.room.folder / "kafka-tools", self.room.limit_to_install)

    def command(self, topic: Topic) -> Sequence[str]:
        """The process."""
        jars = os.pathsep.join(map(str, [*kafka_broker_jars(STATE), *self._tools()]))
        tool = "org.apache.kafka.tools.ConsumerPerformance"
        return [
            *(str(find_java().command), "-Xmx512m", "-cp", jars, tool),
            *("--bootstrap-server", topic.bootstrap, "--topic", topic.name),
            *("--messages", str(topic.records), "--timeout", "30000"),
        ]

    def run(self, topic: Topic, target: Target) -> float:  # noqa: ARG002 - it goes nowhere
        started = time.perf_counter()
        self.room.start("perf-test", self.command(topic)).finish(self.room.limit)
        return time.perf_counter() - started


class CopyAlone(Peer):
    """Rows that are ready as CSV, into PostgreSQL and committed."""

    PROGRAM: ClassVar[str] = "limit: COPY"
    PROMISE: ClassVar[str] = "None: rows come from a file."
    SETTINGS: ClassVar[str] = "One connection, CSV, one transaction; psycopg."

    def __init__(self, room: Room) -> None:
        super().__init__(room, Store.POSTGRES, Mode.WARM)

    def run(self, topic: Topic, target: Target) -> float:
        file = self._file(topic.records)
        statement = f"COPY {target.name} ({', '.join(COLUMNS)}) FROM STDIN (FORMAT csv)"
        started = time.perf_counter()
        with (
            file.open("rb") as source,
            psycopg.connect(target.dsn) as database,
            database.cursor() as cursor,
            cursor.copy(statement.encode()) as copy,
        ):
            while block := source.read(_BLOCK):
                copy.write(block)
        return time.perf_counter() - started

    def _file(self, records: int) -> Path:
        """The rows, written once."""
        file = self.room.folder / f"rows-{records}.csv"
        if not file.exists():
            partial = file.with_suffix(".partial")
            with partial.open("wb") as output:
                for frame in frames(0, records):
                    frame.write_csv(output, include_header=False)
            partial.rename(file)
        return file
