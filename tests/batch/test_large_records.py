"""Rows skip the files only if known to be small; what proves too large takes them after all."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from eo_pipeline.batch import stage
from eo_pipeline.batch.output import materialize
from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.errors import SparkJobError
from eo_pipeline.pipeline import Pipeline
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedTable
from tests.support.engine import Bench, staged_attempts


def promises(bench: Bench, pipeline: Pipeline) -> list[int]:
    """For each promise of one run: how many attempts have a folder at that moment."""
    offsets = list[int]()

    def look(point: CrashPoint) -> None:
        if point is CrashPoint.PRE_COMMITTED:
            offsets.append(len(staged_attempts(bench)))

    with reaching(look):
        pipeline.run()
    return offsets


def test_records_that_were_never_measured_go_through_files(bench: Bench) -> None:
    bench.topic.write(20)
    pipeline = bench.pipeline(inline_records=10_000)
    assert promises(bench, pipeline) == [1]
    bench.topic.write(20)
    assert promises(bench, pipeline) == [0], "measured, few and small: no folder"
    bench.table.assert_holds_once(bench.topic.written)


def test_large_records_go_through_files_however_few_they_are(bench: Bench) -> None:
    """A thousand of 200 kB are well below inline_records, and not below 64 MiB."""
    large = b'{"id": 1, "name": "%s"}' % (b"x" * 200_000)
    pipeline = bench.pipeline(inline_records=10_000, source={"max_records": 1000})
    bench.topic.write_value(large)
    pipeline.run()
    producer = bench.topic.producer(**{"compression.type": "zstd"})
    for _ in range(400):
        producer.produce(bench.topic.name, large, partition=0)
    producer.flush()
    assert promises(bench, pipeline) == [1]
    assert bench.table.query("select count(*) from events") == [(401,)]


@pytest.mark.core
@pytest.mark.usefixtures("by_plan")
def test_what_could_not_be_read_into_memory_goes_through_files_in_the_same_run(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a transform makes a row of 140 MB of a small record, more than one message of Spark
    Connect's takes. Outcome: that is said, and the same version is staged and committed.
    """
    bench.topic.write(20)
    pipeline = bench.pipeline(inline_records=10_000)
    pipeline.run()
    bench.topic.write(20)

    def too_large(frame: Any, attempt: Attempt | None, *more: Any) -> StagedTable:
        if attempt is None:
            raise SparkJobError("RESOURCE_EXHAUSTED: a message of 140 MB")
        return materialize(frame, attempt, *more)

    monkeypatch.setattr(stage, "materialize", too_large)
    with caplog.at_level(logging.WARNING):
        assert promises(bench, pipeline) == [1]
    assert "version 2 could not be read into memory and goes through files" in caplog.text
    bench.table.assert_holds_once(bench.topic.written)
