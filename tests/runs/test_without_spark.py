"""What a pipeline does without Spark: where it starts, what stops it, going back, mending by hand.

Checkpoints are published as a run would publish them, and no record is read: Kafka, PostgreSQL and
the ledger are real, and a look for Spark fails the test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.errors import (
    DataLossError,
    GoingBackError,
    LedgerBehindError,
    LedgerDamagedError,
    StalePlanError,
    UnknownCheckpointError,
)
from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.operations.replay import replay_entry
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.runs.report import RunReport
from eo_pipeline.sinks.capabilities import whole_lineage
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing.staging import DEAD_LETTERS
from tests.support.engine import TABLE, Table, Topic
from tests.support.topics import delete_records, stand_at


def no_spark() -> NoReturn:
    pytest.fail("Spark was asked for, though there is nothing to read")


@dataclass
class Site:
    """A topic of one partition, a database, and the pipeline between them."""

    topic: Topic
    table: Table
    config: dict[str, Any]

    def pipeline(self, **source: Any) -> Pipeline:
        return Pipeline.from_config({**self.config, "source": {**self.config["source"], **source}})

    def run(self, **source: Any) -> RunReport:
        return self.pipeline(**source).run(spark=no_spark)

    @property
    def partition(self) -> TopicPartition:
        return TopicPartition(self.topic.name, 0)

    @property
    def head(self) -> LedgerEntry:
        head = self.pipeline().head()
        assert head is not None
        return head

    def checkpoint(self, rows: int, letters: int = 0) -> LedgerEntry:
        """The next version: it has read so many records, and set ``letters`` of them aside."""
        head, tp = self.head, self.partition
        start, end = head.offsets[tp], head.offsets[tp] + rows + letters
        entry = head.child(Operation.FORWARD, "run", {tp: end})
        entry = replace(entry, ranges=(OffsetRange(*tp, start, end),))
        return self.publish(entry, rows, letters)

    def publish(self, entry: LedgerEntry, rows: int, letters: int = 0) -> LedgerEntry:
        first, number, topic = entry.ranges[0].start, entry.checkpoint, self.topic.name
        lineage = [(number, topic, 0, first + n) for n in range(rows)]
        told = {field.name: [row[n] for row in lineage] for n, field in enumerate(whole_lineage())}
        aside = [
            {"_eo_checkpoint": number, "topic": topic, "partition": 0, "offset": first + rows + n}
            for n in range(letters)
        ]
        staged = StagedOutput(
            StagedTable.in_memory(pa.table(told, whole_lineage())),
            StagedTable.in_memory(pa.Table.from_pylist(aside, DEAD_LETTERS)) if aside else None,
        )
        counts = Counts(
            records=rows + letters,
            rows=rows,
            dead_letters=letters,
            rows_total=entry.counts.rows_total + rows,
        )
        with self.pipeline().sink.open("events") as session:
            entry = session.identified(entry.with_counts(counts))
            session.publish(entry, staged)
        return entry

    def rows(self) -> dict[int, int]:
        """How many rows each checkpoint has."""
        found = self.table.query(f"select _eo_checkpoint, count(*) from {TABLE} group by 1")
        return {int(version): int(count) for version, count in found}


@pytest.fixture
def site(kafka: EmbeddedKafka, topic: str, database: str, tmp_path: Path) -> Site:
    made = Topic(topic, kafka.bootstrap_servers)
    config = {
        "name": "events",
        "source": made.source(),
        "sink": {"type": "postgres", "dsn": database, "table": TABLE},
        "staging": str(tmp_path / "staging"),
    }
    return Site(made, Table(database), config)


@pytest.fixture
def filled(site: Site) -> Site:
    """Three checkpoints of ten records each, and nothing more to read."""
    site.run()
    site.topic.write(30)
    for _ in range(3):
        site.checkpoint(10)
    site.pipeline().recover()
    return site


def test_where_reading_starts_is_asked_once_and_the_ledger_tells_from_then_on(site: Site) -> None:
    site.topic.write(20)
    first = site.run(start="latest").head
    assert (first.operation, dict(first.offsets)) == (Operation.START, {site.partition: 20})
    assert site.run(start="earliest").checkpoints == ()
    # a group that stands elsewhere decides nothing, also where the source names it
    group = f"lag-{site.topic.name}"
    by_group = {"start": {"group": group, "or_else": "earliest"}, "commit_group": group}
    stand_at(site.topic, group, 5)
    assert site.run(**by_group).checkpoints == ()
    assert site.head.id == first.id


def test_a_loss_stops_the_run_before_it_reads_and_an_accepted_one_is_named(
    site: Site, admin: AdminClient
) -> None:
    site.run()
    site.topic.write(20)
    read = site.checkpoint(10)
    delete_records(admin, site.topic.name, 0, before=15)
    with pytest.raises(DataLossError) as stopped:
        site.run()
    (loss,) = stopped.value.losses
    assert (loss.expected, loss.beginning, loss.end) == (10, 15, 20)
    assert site.head.id == read.id

    entry = site.pipeline().accept_loss("a disk died")

    (hole,) = entry.details["holes"]
    assert (hole["partition"], hole["expected"], hole["resumed_at"]) == (0, 10, 15)
    assert entry.details["reason"] == "a disk died"
    assert dict(site.head.offsets) == {site.partition: 15}


def test_a_rewind_takes_the_later_rows_and_stands_where_its_target_stood(filled: Site) -> None:
    (entry,) = filled.pipeline().rewind(1).entries
    assert filled.rows() == {1: 10}
    assert (entry.version, entry.target, entry.counts.rows_total) == (4, 1, 10)
    assert dict(filled.head.offsets) == {filled.partition: 10}
    with pytest.raises(UnknownCheckpointError, match="version 4 rewound to 1"):
        filled.pipeline().plan_rewind(3)


def test_a_fork_begins_where_the_version_stood_and_takes_no_ledger_over(filled: Site) -> None:
    sink = {**filled.config["sink"], "table": "others"}
    (first,) = filled.pipeline().fork(1, "others", sink).history()
    assert (first.operation, dict(first.offsets)) == (Operation.FORK, {filled.partition: 10})
    assert first.details["forked_from"]["version"] == 1
    with pytest.raises(GoingBackError, match="has a ledger already"):
        filled.pipeline().fork(2, "others", sink)
    assert filled.rows() == {1: 10, 2: 10, 3: 10}


def test_an_older_ledger_is_refused_and_adopted_once_its_table_is_as_old(filled: Site) -> None:
    filled.table.execute("delete from eo_ledger where version = 3")
    with pytest.raises(LedgerBehindError, match="version 3"):
        filled.run()
    with pytest.raises(LedgerDamagedError, match="the table holds rows of it"):
        filled.pipeline().plan_adopt()
    filled.table.execute(f"delete from {TABLE} where _eo_checkpoint = 3")

    entry = filled.pipeline().adopt("a backup came back")

    assert entry is not None
    assert (entry.version, entry.operation) == (3, Operation.ADOPT)
    assert dict(entry.offsets) == {filled.partition: 20}
    assert filled.pipeline().recover() == filled.head
    assert filled.head.id == entry.id


def test_a_reset_drops_this_pipeline_as_it_was_looked_at_and_no_other(filled: Site) -> None:
    sink = {**filled.config["sink"], "table": "others"}
    other = filled.pipeline().fork(1, "others", sink)
    plan = filled.pipeline().plan_reset()
    filled.topic.write(5)
    filled.checkpoint(5)
    with pytest.raises(StalePlanError):
        plan.apply()
    assert filled.rows() == {1: 10, 2: 10, 3: 10, 4: 5}

    filled.pipeline().reset()

    assert filled.rows() == {}
    assert filled.pipeline().head() is None
    assert len(other.history()) == 1


def test_a_redrive_is_of_the_checkpoints_that_set_records_aside_until_they_have_landed(
    site: Site,
) -> None:
    site.run()
    site.topic.write(30)
    for letters in (2, 0, 1):
        site.checkpoint(8, letters)
    plan = site.pipeline().plan_redrive()
    assert [each.version for each in plan.checkpoints] == [1, 3]

    first = plan.checkpoints[0]
    site.publish(replay_entry(site.head, first, "run", {}), rows=10)

    assert site.rows() == {1: 10, 2: 8, 3: 8}
    assert site.head.counts.rows_total == 26
    assert [each.version for each in site.pipeline().plan_redrive().checkpoints] == [3]
    assert [row.checkpoint for row in site.pipeline().dead_letter_rows()] == [3]
