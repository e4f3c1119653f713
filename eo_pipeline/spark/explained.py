"""Spark's own words for the plan of a frame."""

from __future__ import annotations

from typing import Any, cast

from pyspark.sql import DataFrame

from eo_pipeline.spark.clients import is_connect


def explained(frame: DataFrame) -> str:
    """What EXPLAIN says of ``frame``.

    Over Spark Connect a frame that a query refers to is copied by protobuf, which gives up at a
    hundred levels: a transform of some steps, on a schema of many columns. The client's own request
    for an explanation has no such limit.

    Raises:
        PySparkException: Spark does not say.
    """
    if is_connect(frame):
        client, plan = cast(Any, frame.sparkSession).client, cast(Any, frame)._plan
        return str(client.explain_string(plan.to_proto(client), "simple"))
    lines = frame.sparkSession.sql("EXPLAIN SELECT * FROM {rows}", rows=frame).collect()
    return "\n".join(str(line[0]) for line in lines)
