"""What a record costs on its way through Spark, told by the plan: not by a machine's mood."""

from __future__ import annotations

import re
from typing import Any

import pytest
from pyspark.sql import DataFrame

from eo_pipeline.batch import stage
from eo_pipeline.batch.output import materialize
from eo_pipeline.spark import staging_settings
from tests.support.engine import Bench


@pytest.fixture
def staged(monkeypatch: pytest.MonkeyPatch, by_plan: None) -> list[DataFrame]:
    """What is staged, in the order of the jobs."""
    found: list[DataFrame] = []

    def kept(frame: DataFrame, *rest: Any) -> Any:
        found.append(frame)
        return materialize(frame, *rest)

    monkeypatch.setattr(stage, "materialize", kept)
    return found


def plan_of(frames: list[DataFrame]) -> str:
    """Of the one job there was, in Spark's own words; asked afterwards, since a server tells what
    was observed under a name only once.
    """
    [frame] = frames
    with staging_settings(frame.sparkSession):
        told = frame.sparkSession.sql("EXPLAIN FORMATTED SELECT * FROM {rows}", rows=frame)
        return "\n".join(str(line[0]) for line in told.collect())


def columns_into(plan: str, step: str) -> set[str]:
    """The names of the columns that flow into any such ``step`` of a plan."""
    lines = re.findall(rf"\(\d+\) {step}\b[^\n]*\nInput \[\d+\]: \[([^\]]*)\]", plan)
    return {name.strip().partition("#")[0] for line in lines for name in line.split(",")}


def test_a_record_goes_from_the_connector_into_a_row_at_once(
    bench: Bench, staged: list[DataFrame]
) -> None:
    """By Spark's older interface it would become a Java object, and a row again."""
    bench.topic.write(10)
    assert bench.pipeline().run().rows == 10
    plan = plan_of(staged)
    assert "BatchScan" in plan
    assert "KafkaRelation" not in plan


def test_what_was_read_of_a_record_is_not_counted_with_its_own_bytes(
    bench: Bench, staged: list[DataFrame]
) -> None:
    """Each step that counts copies a row; a record's bytes are half of one."""
    bench.topic.write(10)
    bench.pipeline().run()
    plan = plan_of(staged)
    counted = columns_into(plan, "CollectMetrics")
    assert {"id", "name"} <= counted
    assert {"value", "key", "headers", "_eo_text", "_eo_parsed"}.isdisjoint(counted)


def test_the_bytes_are_there_where_they_are_the_value(
    bench: Bench, staged: list[DataFrame]
) -> None:
    bench.topic.write(10)
    config = {"value_format": "raw", "value_schema": None}
    assert bench.pipeline(source=config).run().rows == 10
    plan = plan_of(staged)
    assert "value" in columns_into(plan, "CollectMetrics")
