"""What does an operation: a whole pipeline from Kafka on, or the sink with the model's rows."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.sinks.capabilities import Maintenance
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.sinks.session import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry, to_files
from tests.lakes.columns import Columns, ddl_of, record_of
from tests.lakes.lakes import Lake
from tests.lakes.model import CHECKPOINT, OFFSET, PARTITION, TOPIC, Model, Record, Row
from tests.lakes.world import World

PIPELINE = "p"


class Driver(Protocol):
    """Does to the table what the model is then told."""

    #: whether it is a whole pipeline: one that goes by files, too, and makes every check beforehand
    is_whole: bool

    def write(self, records: Sequence[Record]) -> None: ...

    def run(self, *, files: bool = False, most: int | None = None) -> int: ...

    def rewind(self, to: int) -> None: ...

    def replay(self, versions: Sequence[int]) -> None: ...

    def redrive(self) -> None: ...

    def maintain(self) -> None: ...

    def reset(self) -> None: ...

    def letters(self) -> set[tuple[int, int]]: ...


class Whole:
    """A pipeline, its topic and a Spark."""

    is_whole = True

    def __init__(
        self, world: World, lake: Lake, model: Model, settings: dict[str, Any], folder: Path
    ) -> None:
        self._world, self._lake, self._model = world, lake, model
        self._settings, self._folder = settings, folder
        world.topic(lake.name, model.partitions)

    def pipeline(self, *, files: bool = False, most: int | None = None) -> Pipeline:
        return Pipeline.from_config(
            {
                "name": PIPELINE,
                "source": {
                    "bootstrap_servers": self._world.broker.bootstrap_servers,
                    "topics": [self._lake.name],
                    "value_schema": ddl_of(self._model.source),
                    "on_bad_record": "dead_letter",
                    "max_records": most or 10_000,
                },
                "sink": self._lake.sink(**self._settings),
                "staging": str(self._folder / "staging"),
                "inline_records": 0 if files else 10_000,
                "maintenance": {"target_file_size": "1MB"},
            }
        )

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            value = record_of(self._model.source, record.values)
            self._world.producer.produce(self._lake.name, value, partition=record.partition)
        assert self._world.producer.flush(60) == 0

    def run(self, *, files: bool = False, most: int | None = None) -> int:
        return self.pipeline(files=files, most=most).run().head.version

    def rewind(self, to: int) -> None:
        self.pipeline().rewind(to)

    def replay(self, versions: Sequence[int]) -> None:
        self.pipeline().replay(versions=versions)

    def redrive(self) -> None:
        self.pipeline().plan_redrive().apply()

    def maintain(self) -> None:
        self.pipeline().maintain()

    def reset(self) -> None:
        self.pipeline().reset()

    def letters(self) -> set[tuple[int, int]]:
        return {(each.partition, each.offset) for each in self.pipeline().dead_letter_rows()}


class ByHand:
    """The sink's session: rows come in memory, made by the model."""

    is_whole = False

    def __init__(self, lake: Lake, model: Model, settings: dict[str, Any]) -> None:
        self._lake, self._model = lake, model
        self._sink: Sink = sink_from_config(lake.sink(**settings))

    def write(self, records: Sequence[Record]) -> None:
        """There is no topic but the model's."""

    def run(self, *, files: bool = False, most: int | None = None) -> int:
        head = self._head()
        if head is None:
            head = first_entry(PIPELINE)
            self._publish(head, StagedOutput())
        pending = self._model.pending()
        while read := pending[:most]:
            del pending[: len(read)]
            staged = self._staged(read, head.version + 1, files=files)
            head = child_of(head, staged)
            self._publish(head, staged)
        return head.version

    def rewind(self, to: int) -> None:
        self._go_back(Operation.REWIND, to, StagedOutput())

    def replay(self, versions: Sequence[int]) -> None:
        for version in versions:
            [entry] = [each for each in self._model.live if each.version == version]
            staged = self._staged(self._model.records_of(entry), version)
            self._go_back(Operation.REPLAY, version, staged)

    def redrive(self) -> None:
        self.replay(sorted({checkpoint for checkpoint, _, _ in self._model.letters}))

    def maintain(self) -> None:
        with self._sink.open(PIPELINE) as session:
            list(session.maintain(Maintenance(target_file_size="1MB"), dry_run=False))

    def reset(self) -> None:
        with self._sink.open(PIPELINE) as session:
            session.reset(dry_run=False)

    def letters(self) -> set[tuple[int, int]]:
        """None: they are not staged."""
        return {(partition, offset) for _, partition, offset in self._model.letters}

    def _head(self) -> LedgerEntry | None:
        with self._sink.open(PIPELINE) as session:
            return session.head()

    def _go_back(self, operation: Operation, target: int, staged: StagedOutput) -> None:
        head = self._head()
        assert head is not None
        self._publish(child_of(head, staged, operation=operation, target=target), staged)

    def _publish(self, entry: LedgerEntry, staged: StagedOutput) -> None:
        with self._sink.open(PIPELINE) as session:
            assert session.publish(entry, staged) is CommitOutcome.COMMITTED

    def _staged(
        self, read: Sequence[Record], checkpoint: int, *, files: bool = False
    ) -> StagedOutput:
        made = (self._model.row(record, checkpoint) for record in read)
        rows = [row for row in made if row is not None]
        table = arrow_of(self._model.source, rows, self._lake.name)
        staged = StagedTable.in_memory(table)
        folder = self._sink.staging_folders().rows
        if files and folder is not None and self._lake.store == "delta":
            staged = to_files(staged, folder / PIPELINE / f"{checkpoint}-{uuid.uuid4().hex}")
        return StagedOutput(rows=staged)


def arrow_of(columns: Columns, rows: Sequence[Row], topic: str) -> pa.Table:
    """As a pipeline stages them."""
    own = {
        CHECKPOINT: pa.array([row.checkpoint for row in rows], pa.int64()),
        TOPIC: pa.array([topic] * len(rows), pa.string()),
        PARTITION: pa.array([row.partition for row in rows], pa.int32()),
        OFFSET: pa.array([row.offset for row in rows], pa.int64()),
    }
    values = {
        name: pa.array(
            [column.kind.as_arrow(row.values.get(name)) for row in rows], column.kind.arrow
        )
        for name, column in columns.items()
    }
    return pa.table({**values, **own})
