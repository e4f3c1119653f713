"""Metrics collected during one action, on a classic session or over Spark Connect."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import Any, cast

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from eo_pipeline.spark.clients import is_connect

#: Metric with the time at which Spark planned the action: equal in all metrics of an action, and
#: unique to it. As text: a number would be a literal in generated code, compiled for each action.
ACTION = "action"


class Observed:
    """``frame`` with metrics, collected by an action on it or on a frame derived from it.

    The metrics count the rows that flowed through ``frame``, not its content: a part of it under a
    ``limit``, twice its rows under an ``orderBy``, none if the optimizer removed it. On a classic
    session they belong to the first action by any caller. See :data:`ACTION`.
    """

    def __init__(self, frame: DataFrame, *metrics: Column, times: int = 1) -> None:
        """Add the metrics.

        Args:
            frame: the frame to observe.
            metrics: aggregate expressions.
            times: number of observations, over Spark Connect. After a job the server waits a tenth
                of a second for the metrics of each observation in turn
                (``Observation.getOrEmpty`` of Spark 4.0), then reports none; all arrive at once,
                some time later. Cheap additional observations prolong the wait, and the one with
                ``metrics`` is awaited last. A server that caches plans reports none at all: see
                ``STAGING_SETTINGS``.
        """
        moment = F.current_timestamp().cast("string").alias(ACTION)
        if is_connect(frame):
            # no Observation: pyspark cannot build a plan that contains one twice
            self._observation = None
            *others, self._name = sorted((_name() for _ in range(times)), key=_wait_order)
            frame = frame.observe(self._name, *metrics, moment)
            for other in others:
                frame = frame.observe(other, F.count(F.lit(1)).alias("waited"))
        else:
            self._observation = Observation(_name())
            frame = frame.observe(self._observation, *metrics, moment)
        self.frame = frame

    def metrics(self, acted: DataFrame, wait_s: float) -> Mapping[str, Any] | None:
        """Return the metrics of the action on ``acted``, this frame or a derived one; None if there
        are none, on a classic session within ``wait_s``.
        """
        if self._observation is not None:
            return _first_actions(self._observation, wait_s)
        info = acted.executionInfo
        flows = dict(info.flows) if info is not None else {}
        return flows.get(self._name) or None


def _name() -> str:
    return f"eo-{uuid.uuid4().hex}"


def _wait_order(name: str) -> int:
    """Return the position of ``name`` in a Scala hash map with sixteen buckets, the order in which
    a server awaits observations. It affects only the length of the wait.
    """
    hashed = 0
    for letter in name:
        hashed = (31 * hashed + ord(letter)) & 0xFFFFFFFF
    return (hashed ^ (hashed >> 16)) & 15


def _first_actions(observation: Observation, wait_s: float) -> Mapping[str, Any] | None:
    """Wait for the metrics: they arrive soon after the action or never; ``get`` has no timeout."""
    metrics: list[Mapping[str, Any]] = []
    waiter = threading.Thread(target=lambda: metrics.append(observation.get), daemon=True)
    waiter.start()
    waiter.join(wait_s)
    return metrics[0] if metrics and metrics[0] else None


def explained(frame: DataFrame) -> str:
    """Return the EXPLAIN output of ``frame``.

    Over Spark Connect, protobuf copies a frame that a query references, and fails at a hundred
    levels: a transform of some steps, on a schema of many columns. The client's explain request has
    no such limit.

    Raises:
        PySparkException: Spark cannot explain it.
    """
    if is_connect(frame):
        client, plan = cast(Any, frame.sparkSession).client, cast(Any, frame)._plan
        return str(client.explain_string(plan.to_proto(client), "simple"))
    lines = frame.sparkSession.sql("EXPLAIN SELECT * FROM {rows}", rows=frame).collect()
    return "\n".join(str(line[0]) for line in lines)
