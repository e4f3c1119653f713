"""Kafka into MariaDB, a whole pipeline, killed where it hurts; compared from outside."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.embedded.spark import EmbeddedSpark
from tests.support.engine import TABLE, Bench, Coordinates, Table, Topic, staged_attempts
from tests.support.stores import MySqlDatabase


@dataclass(frozen=True)
class MySqlTable:
    """The outside observer: its own connection, its own queries, no engine code."""

    database: MySqlDatabase

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        with self.database.connect() as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    def coordinates(self) -> Counter[Coordinates]:
        """How often each record is in the table."""
        found = self.query(f"SELECT _eo_topic, _eo_partition, _eo_offset FROM {TABLE}")
        return Counter((t, p, o) for t, p, o in found)

    def checkpoints(self) -> dict[int, int]:
        """Rows of each checkpoint, as counted in the table."""
        return dict(self.query(f"SELECT _eo_checkpoint, count(*) FROM {TABLE} GROUP BY 1"))

    def ledger(self) -> dict[int, int]:
        """Rows of each checkpoint, as the ledger says."""
        rows = "CAST(JSON_VALUE(counts, '$.rows') AS SIGNED)"
        return dict(self.query(f"SELECT version, {rows} FROM eo_ledger WHERE version > 0"))


@pytest.fixture
def observed(mysql_database: MySqlDatabase) -> MySqlTable:
    return MySqlTable(mysql_database)


@pytest.fixture
def mysql_bench(
    spark_server: EmbeddedSpark, events: Topic, mysql_database: MySqlDatabase, tmp_path: Path
) -> Bench:
    config: dict[str, Any] = {
        "name": "events",
        "source": events.source(max_records=100),
        "sink": mysql_database.settings(table=TABLE),
        "staging": str(tmp_path / "staging"),
        "inline_records": 0,
    }
    return Bench(events, Table(""), config)


@pytest.mark.parametrize("point", [CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT])
def test_killed_within_the_transaction_the_next_run_keeps_the_promise(
    mysql_bench: Bench, observed: MySqlTable, point: CrashPoint
) -> None:
    topic = mysql_bench.topic
    topic.write(300, partitions=range(4))
    # the start entry and the first checkpoint pass the point before
    killed = mysql_bench.run_in_a_process("--crash-at", point, "3")
    out, err = killed.communicate(timeout=240)
    assert killed.returncode == -signal.SIGKILL, err
    assert "done" not in out
    assert observed.checkpoints() == observed.ledger() == {1: 100}

    report = mysql_bench.pipeline().run()

    assert [(r.entry.version, r.recovered) for r in report.checkpoints] == [(2, True), (3, False)]
    assert observed.coordinates() == Counter(topic.written)
    assert observed.checkpoints() == observed.ledger() == {1: 100, 2: 100, 3: 100}
    assert staged_attempts(mysql_bench) == []
