"""A MariaDB database with a pipeline in it, and somebody else who looks at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pymysql
import pytest
from pymysql.cursors import DictCursor

from eo_pipeline.crashpoints import CrashPoint, Reach
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.mysql import MySqlSink
from eo_pipeline.sinks.protocol import CommitOutcome
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry
from tests.stores import MySqlDatabase


def staged(**columns: Any) -> StagedTable:
    """Rows in memory; plain lists get the Arrow type of their values."""
    return StagedTable.in_memory(pa.table(columns))


@dataclass
class World:
    """A database with one pipeline in it, and an observer that is not the pipeline."""

    database: MySqlDatabase
    observer: pymysql.Connection[Any]

    def sink(self, **settings: Any) -> MySqlSink:
        return MySqlSink.model_validate(self.database.settings(**{"table": "t", **settings}))

    def run(self, statement: str) -> None:
        with self.observer.cursor() as cursor:
            cursor.execute(statement)

    def rows(self, query: str = "SELECT * FROM t") -> list[dict[str, Any]]:
        with self.observer.cursor(DictCursor) as cursor:
            cursor.execute(query)
            return list(cursor.fetchall())

    def tables(self) -> set[str]:
        return {str(next(iter(row.values()))) for row in self.rows("SHOW TABLES")}

    def publish(self, sink: MySqlSink, *batches: StagedTable, pipeline: str = "p") -> LedgerEntry:
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
def world(mysql_database: MySqlDatabase) -> Iterator[World]:
    with mysql_database.connect() as observer:
        yield World(mysql_database, observer)


#: The ways rows travel.
BOTH_WAYS = pytest.mark.parametrize("load_data", [True, False], ids=["load data", "insert"])


def at(point: CrashPoint, act: Callable[[], object]) -> Reach:
    """Do something at ``point``."""

    def reach(reached: CrashPoint) -> None:
        if reached == point:
            act()

    return reach
