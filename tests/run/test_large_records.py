"""Rows skip the files only if known to be small; what proves too large takes them after all."""

from __future__ import annotations

import logging
from pathlib import Path

import polars as pl
import pytest

from eo_pipeline.crashpoints import CrashPoint, reaching
from eo_pipeline.pipeline import Pipeline
from tests.engine import Bench, staged_attempts


def promises(bench: Bench, pipeline: Pipeline) -> list[int]:
    """For each promise of one run: how many attempts have a folder at that moment."""
    found = list[int]()

    def look(point: CrashPoint) -> None:
        if point is CrashPoint.PRE_COMMITTED:
            found.append(len(staged_attempts(bench)))

    with reaching(look):
        pipeline.run()
    return found


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


def test_what_does_not_fit_into_memory_after_all_goes_through_files_in_the_same_run(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A transform makes one row of 140 MB of a small record: more than one message of Spark
    Connect's takes. Outcome: that is said, and the same version is staged and committed.
    """
    sink = {"type": "parquet", "path": str(tmp_path / "table")}
    grown = {"transform": "tests.run.transforms:grown", "inline_records": 10_000}
    pipeline = Pipeline.from_config({**bench.config, **grown, "sink": sink})
    bench.topic.write(2)
    pipeline.run()
    bench.topic.write(2)
    with caplog.at_level(logging.WARNING):
        assert promises(bench, pipeline) == [1]
    assert "version 2 could not be read into memory and goes through files" in caplog.text
    table = pl.read_parquet(tmp_path / "table" / "checkpoint=2" / "*.parquet")
    assert dict(zip(table["id"], table["name"].str.len_bytes(), strict=True)) == {
        2: 140_000_000,
        3: 8,
    }
