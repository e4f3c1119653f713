"""An audit of real tables against real topics: what it finds, what it leaves alone, its repairs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

from eo_pipeline import (
    AuditReport,
    ConfigError,
    FindingKind,
    Pipeline,
    Repair,
    UnknownCheckpointError,
)
from eo_pipeline.audit.report import Holes
from eo_pipeline.batch.counting import ReadCounts, SourceCounter
from eo_pipeline.embedded.kafka import EmbeddedKafka
from tests.kafka.test_kafka_shapes import _count
from tests.support.engine import Bench, Topic
from tests.support.servers import MakeTopic, wait_until
from tests.support.topics import delete_records

TRANSFORMS = "tests.audit.audit_transforms"
LENIENT = {"on_bad_record": "dead_letter", "tombstones": "skip"}


@pytest.fixture
def admin(kafka: EmbeddedKafka) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.start().bootstrap_servers, "log_level": 0})


def audited(pipeline: Pipeline, last: int | None = None) -> AuditReport:
    """An audit that leaves nothing behind, and whose report is JSON."""
    report = pipeline.audit(last)
    assert list(Path(str(pipeline.staging)).rglob("_audit*")) == []
    assert json.loads(json.dumps(report.to_json()))["passed"] is report.passed
    return report


def assert_passes(pipeline: Pipeline) -> AuditReport:
    report = audited(pipeline)
    assert report.passed, str(report)
    assert report.repairs == ()
    return report


def found(report: AuditReport) -> dict[FindingKind, int]:
    counts: dict[FindingKind, int] = {}
    for finding in (*report.findings, *report.remarks):
        counts[finding.kind] = counts.get(finding.kind, 0) + finding.count
    return counts


def on_reading(action: Callable[[], object], what: str = "reading where") -> Callable[[str], None]:
    """Do ``action`` whenever an audit has seen the ledger and not yet the table."""

    def hear(said: str) -> None:
        if said.startswith(what):
            action()

    return hear


def write_aborted(topic: Topic) -> None:
    """A hole of three offsets: two records that never were, and the marker that says so."""
    producer = topic.producer(**{"transactional.id": f"tx-{topic.name}"})
    producer.init_transactions()
    producer.begin_transaction()
    producer.produce(topic.name, b'{"id": 1}', partition=0)
    producer.produce(topic.name, b'{"id": 1}', partition=0)
    producer.flush()
    producer.abort_transaction()


def test_differences_are_named_by_record_and_the_named_replay_repairs_them(bench: Bench) -> None:
    """Filter, explode, dead letters, tombstones and an aborted transaction: all of it passes. Then
    somebody edits the table.
    """
    topic, table = bench.topic, bench.table
    topic.write(120, partitions=range(4))
    topic.write_value(b"not json")
    topic.write_value(None)
    write_aborted(topic)
    topic.write(150, partitions=range(4))
    pipeline = bench.pipeline(transform=f"{TRANSFORMS}:two_of_three_twice", source=LENIENT)
    with pytest.raises(UnknownCheckpointError):
        pipeline.audit()
    pipeline.run()

    report = assert_passes(pipeline)
    totals = report.totals
    assert (totals["checkpoints"], totals["offsets"], totals["records"]) == (3, 275, 272)
    assert totals["rows_expected"] == totals["rows_found"] == totals["rows_counted"] == 360
    assert (totals["dead_letters"], totals["dead_letters_counted"]) == (1, 1)
    assert {each.holes for each in report.checkpoints} == {Holes.NONE, Holes.MARKERS}

    table.execute("insert into events (id, name) values (-1, 'by another writer')")
    # id 4 was the second record of partition 0, id 9 the third of partition 1 and dropped
    table.execute("delete from events where id = 4 and copy = 1")
    table.execute("insert into events select * from events where id = 5 and copy = 0")
    lineage = "id, _eo_checkpoint, _eo_topic, _eo_partition, _eo_offset"
    for row in (
        f"(9, 1, '{topic.name}', 1, 2)",  # a record that the transform leaves out
        f"(9, 1, '{topic.name}', 1, 9999)",  # no record
        f"(9, 2, '{topic.name}', 1, 0)",  # a record of another checkpoint
        f"(9, 77, '{topic.name}', 1, 0)",  # no checkpoint of that number
        f"(9, null, '{topic.name}', 1, 0)",
    ):
        table.execute(f"insert into events ({lineage}) values {row}")
    report = audited(pipeline)
    assert found(report) == {
        FindingKind.MISSING: 1,
        FindingKind.DUPLICATED: 1,
        FindingKind.FOREIGN: 5,
        FindingKind.NOT_OURS: 1,
    }
    named = {(e.partition, e.offset, e.checkpoint) for f in report.findings for e in f.examples}
    assert (0, 1, 1) in named  # missing
    assert (1, 1, 1) in named  # duplicated
    assert {(1, 2, 1), (1, 9999, 1), (1, 0, 2), (1, 0, None)} <= named
    assert {e.topic for f in report.findings for e in f.examples} == {topic.name}
    assert [each.differs for each in report.checkpoints] == [True, True, False]
    first, *by_hand = report.repairs
    assert (first.command, first.refused) == ("eo replay 1 2", None)

    for each in by_hand:
        table.execute(f"delete from events where {each.condition}")
    assert first.first is not None
    pipeline.replay(first.first, first.last)
    assert found(assert_passes(pipeline)) == {FindingKind.NOT_OURS: 1}


def test_what_a_rewind_took_back_is_not_missed_and_the_last_n_are_only_those(bench: Bench) -> None:
    bench.topic.write(250, partitions=range(4))
    pipeline = bench.pipeline()
    pipeline.run()
    pipeline.rewind(1)
    pipeline.run()
    assert [c.version for c in assert_passes(pipeline).checkpoints] == [1, 5, 6]
    bench.table.execute("update events set _eo_offset = 9999 where id = 0")
    report = audited(pipeline, last=2)
    assert report.passed, str(report)
    assert [c.version for c in report.checkpoints] == [5, 6]
    assert any("before version 5" in said for said in report.cannot_prove)
    with pytest.raises(ConfigError, match="1 or more"):
        pipeline.audit(0)


def test_runs_go_on_and_back_meanwhile_and_the_audit_reports_no_falsehood(bench: Bench) -> None:
    bench.topic.write(90, partitions=range(4))
    pipeline = bench.pipeline()
    pipeline.run()

    def run_on() -> None:
        bench.topic.write(10)
        pipeline.run()

    report = pipeline.audit(on_progress=on_reading(run_on))
    assert report.passed, str(report)
    assert (report.head.version, pipeline.newest(1)[0].version) == (1, 2)

    backs = iter([lambda: pipeline.rewind(1)])
    report = pipeline.audit(on_progress=on_reading(lambda: next(backs, list)()))
    assert report.passed, str(report)
    assert report.head.version == 3  # looked again

    report = pipeline.audit(on_progress=on_reading(lambda: pipeline.replay(1)))
    assert list(found(report)) == [FindingKind.UNSETTLED]

    shouting = bench.pipeline(transform="tests.runs.transforms:shouting")
    replay = on_reading(lambda: shouting.replay(1), "reading what the table's rows hold")
    report = pipeline.audit(on_progress=replay)
    assert report.passed, str(report)
    assert any("went back while they were read" in said for said in report.cannot_prove)


def test_a_transform_that_sees_a_checkpoint_as_a_whole_is_applied_to_each_alone(
    bench: Bench,
) -> None:
    """Two checkpoints with the same names: taken together, half of the rows would be foreign."""
    pipeline = bench.pipeline(transform=f"{TRANSFORMS}:first_of_each_name")
    for _ in range(2):
        bench.topic.next_id = 0
        bench.topic.write(40, partitions=range(4))
        pipeline.run()
    assert assert_passes(pipeline).totals["rows_expected"] == 80
    bench.table.execute("delete from events where _eo_checkpoint = 2 and id = 7")
    report = audited(pipeline)
    assert found(report) == {FindingKind.MISSING: 1}
    assert [str(e) for e in report.findings[0].examples] == [
        f"{bench.topic.name}[3] offset 11, checkpoint 2: expected 1, found 0"
    ]


@pytest.mark.core
def test_what_kafka_no_longer_holds_is_proved_by_its_checksum_and_cannot_be_replayed(
    bench: Bench, admin: AdminClient
) -> None:
    bench.topic.write(200)
    pipeline = bench.pipeline(source={"on_retention": "continue"})
    pipeline.run()
    delete_records(admin, bench.topic.name, 0, before=150)
    report = assert_passes(pipeline)
    assert found(report) == {}
    assert report.totals["as_committed"] == 2
    assert [each.unreadable for each in report.checkpoints] == [100, 50]
    assert any("150 offsets" in said and "retention" in said for said in report.cannot_prove)

    bench.table.execute("delete from events where _eo_offset in (10, 160)")
    report = audited(pipeline)
    assert found(report) == {
        FindingKind.MISCOUNTED: 1,
        FindingKind.MISSING: 1,
        FindingKind.UNPROVED: 149,
    }
    assert [(r.first, r.last, r.command) for r in report.repairs] == [(1, 2, None)]
    assert "no longer holds" in str(report.repairs[0])

    # a hole that was accepted is named for ever
    bench.topic.write(100)
    delete_records(admin, bench.topic.name, 0, before=250)
    pipeline.run()
    accepted = [f for f in audited(pipeline).remarks if f.kind is FindingKind.ACCEPTED_LOSS]
    assert "next offset in the ledger 200" in accepted[0].text


def test_compaction_is_told_apart_from_loss(
    bench: Bench, admin: AdminClient, make_topic: MakeTopic
) -> None:
    impatient = {
        "segment.ms": "100",
        "min.cleanable.dirty.ratio": "0.01",
        "max.compaction.lag.ms": "100",
    }
    topic = Topic(make_topic(config=impatient), bench.topic.bootstrap_servers)
    for number in range(6):
        for key in range(5):
            value = json.dumps({"id": number, "name": f"key {key}"}).encode()
            topic.write_value(value, key=str(key).encode())
        time.sleep(0.15)  # another segment begins with a record that comes later
    pipeline = bench.pipeline(source={"topics": [topic.name]})
    pipeline.run()
    assert assert_passes(pipeline).checkpoints[0].holes is Holes.NONE

    clean_up(admin, topic.name, "compact")
    wait_until(lambda: _count(topic) < 30)
    clean_up(admin, topic.name, "delete")
    lost = 30 - _count(topic)
    report = audited(pipeline)
    assert found(report) == {FindingKind.LOST: lost}
    assert report.totals["as_committed"] == 1
    assert report.repairs[0].refused is not None
    assert "would take these records' rows out" in report.repairs[0].refused

    clean_up(admin, topic.name, "compact")
    wait_until(lambda: bool(_compacted(admin, topic.name)))
    report = assert_passes(pipeline)
    assert report.checkpoints[0].holes is Holes.COMPACTION
    assert set(found(report)) == {FindingKind.COMPACTED}


def clean_up(admin: AdminClient, topic: str, policy: str) -> None:
    """How the broker treats old records from now on."""
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    for altered in admin.incremental_alter_configs([resource]).values():
        altered.result()


def _compacted(admin: AdminClient, topic: str) -> bool:
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    (described,) = admin.describe_configs([resource]).values()
    return bool(described.result()["cleanup.policy"].value == "compact")


def test_without_lineage_rows_are_counted_and_the_report_says_so(bench: Bench) -> None:
    bench.topic.write(150, partitions=range(4))
    pipeline = bench.pipeline(lineage=False, transform=f"{TRANSFORMS}:named")
    pipeline.run()
    report = assert_passes(pipeline)
    assert report.totals["rows_found"] == 150
    assert any("lineage is off" in said for said in report.cannot_prove)
    bench.table.execute("delete from events where id = 120")
    report = audited(pipeline)
    assert found(report)[FindingKind.MISCOUNTED] == 1
    assert report.repairs == (Repair(2, 2, "eo replay 2 2"),)

    # lineage that was switched on later says nothing about the rows that are there already
    assert found(audited(bench.pipeline()))[FindingKind.MISCOUNTED] == 1


def test_rows_that_replace_each_other_are_not_called_missing(bench: Bench) -> None:
    upsert = {"mode": "upsert", "key": ["id"]}
    pipeline = bench.pipeline(sink=upsert)
    for _ in range(2):
        bench.topic.next_id = 0
        bench.topic.write(60, partitions=range(4))
        pipeline.run()
    report = assert_passes(pipeline)
    assert found(report) == {FindingKind.UNPROVED: 60}
    assert any("absent" in said for said in report.cannot_prove)
    bench.table.execute("update events set _eo_offset = 5555 where id = 3")
    report = audited(pipeline)
    assert found(report)[FindingKind.FOREIGN] == 1
    assert report.repairs[0].refused is not None
    assert "upserted" in report.repairs[0].refused


def test_of_a_sink_that_cannot_be_read_only_ledger_and_kafka_are_compared(
    bench: Bench, tmp_path: Path
) -> None:
    bench.topic.write(10)
    config = {**bench.config, "sink": {"type": "console", "ledger": str(tmp_path / "ledger")}}
    pipeline = Pipeline.from_config(config)
    pipeline.run()
    report = assert_passes(pipeline)
    assert (report.totals["records"], report.checkpoints[0].rows_found) == (10, None)
    assert any("cannot be read back" in said for said in report.cannot_prove)


@pytest.mark.usefixtures("by_plan")
def test_bad_records_that_nobody_counted_are_miscounted_and_a_replay_counts_them(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a run that lost its bad records on the way, as one did whose transform looked at
    its first row. Outcome: the audit says how many, and the replay it names puts it right.
    """
    seen = SourceCounter.seen

    def without_the_bad(*args: Any, **kwargs: Any) -> ReadCounts:
        found = seen(*args, **kwargs)
        return replace(found, records=found.records - found.bad, bad=0, first_bad=None)

    bench.topic.write(20)
    bench.topic.write_value(b"not json")
    bench.topic.write_value(b"not json")
    pipeline = bench.pipeline(source=LENIENT)
    with monkeypatch.context() as lossy:
        lossy.setattr(SourceCounter, "seen", without_the_bad)
        pipeline.run()
    report = audited(pipeline)
    assert found(report) == {FindingKind.MISCOUNTED: 2}
    assert [each.command for each in report.repairs] == ["eo replay 1 1"]
    pipeline.replay(1)
    assert_passes(pipeline)
    assert bench.table.query("select count(*) from events_dead_letters") == [(2,)]
