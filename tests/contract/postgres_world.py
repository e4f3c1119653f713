"""A database with a pipeline in it, and somebody else who looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from psycopg.rows import dict_row

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.postgres import PostgresSink
from eo_pipeline.sinks.protocol import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry


def staged(**columns: Any) -> StagedTable:
    """Rows in memory; plain lists get the Arrow type of their values."""
    return StagedTable.in_memory(pa.table(columns))


@dataclass
class World:
    """A database with one pipeline in it, and an observer that is not the pipeline."""

    dsn: str
    observer: psycopg.Connection[dict[str, Any]]

    def sink(self, **settings: Any) -> PostgresSink:
        return PostgresSink.model_validate({"dsn": self.dsn, "table": "t", **settings})

    def run(self, statement: str) -> None:
        self.observer.execute(statement.encode())

    def rows(self, query: str = "SELECT * FROM t") -> list[dict[str, Any]]:
        return self.observer.execute(query.encode()).fetchall()

    def publish(
        self, sink: PostgresSink, *batches: StagedTable, pipeline: str = "p"
    ) -> LedgerEntry:
        """Publish each batch as one more checkpoint; the start entry where there is none."""
        with sink.open(pipeline) as session:
            head = session.head()
            if head is None:
                head = first_entry(pipeline)
                session.publish(head, StagedOutput())
            for batch in batches:
                entry = child_of(head, batch.rows)
                outcome = session.publish(entry, StagedOutput(rows=batch))
                assert outcome is CommitOutcome.COMMITTED
                head = entry
            return head


@pytest.fixture
def world(database: str) -> Iterator[World]:
    with psycopg.connect(database, autocommit=True, row_factory=dict_row) as observer:
        yield World(database, observer)
