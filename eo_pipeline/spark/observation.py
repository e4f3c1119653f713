"""Metrics of one action, collected while it runs, on a classic session and over Spark Connect."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import Any, cast

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as F

from eo_pipeline.spark.clients import is_connect

#: The moment Spark planned the action, the same in every metric of it and in no other action's. As
#: text: a number would stand in generated code, which each action would then compile anew.
ACTION = "action"


class Observed:
    """``frame`` with metrics that an action on it, or on what is made of it, collects on its way.

    They tell what has flowed through ``frame``, not what is in it: a part of it after a ``limit``,
    twice as much after an ``orderBy``, nothing if the optimizer left it out. On a classic session
    they are those of the first action, whoever called it. See :data:`ACTION`.
    """

    def __init__(self, frame: DataFrame, *metrics: Column, times: int = 1) -> None:
        """``times``: over Spark Connect, tenths of a second until the server says that there
        are no metrics. When a job has written its files it waits a tenth for those of each name,
        one name after the other (``Observation.getOrEmpty`` of Spark 4.0), and all of them come
        at once, when it gets round to it. So there are names that count next to nothing, and the
        one that counts is asked for last. A server that keeps plans says nothing at all: see
        ``STAGING_SETTINGS``.
        """
        moment = F.current_timestamp().cast("string").alias(ACTION)
        if is_connect(frame):
            # no Observation: pyspark cannot put together a plan that has one twice
            self._observation = None
            *others, self._name = sorted((_name() for _ in range(times)), key=_turn)
            frame = frame.observe(self._name, *metrics, moment)
            for other in others:
                frame = frame.observe(other, F.count(F.lit(1)).alias("waited"))
        else:
            self._observation = Observation(_name())
            frame = frame.observe(self._observation, *metrics, moment)
        self.frame = frame

    def metrics(self, acted: DataFrame, wait_s: float) -> Mapping[str, Any] | None:
        """What the action on ``acted`` collected, which is this frame or made of it; None if there
        is nothing, on a classic session within ``wait_s``.
        """
        if self._observation is not None:
            return _first_actions(self._observation, wait_s)
        info = acted.executionInfo
        flows = dict(info.flows) if info is not None else {}
        return flows.get(self._name) or None


def _name() -> str:
    return f"eo-{uuid.uuid4().hex}"


def _turn(name: str) -> int:
    """When a server gets to ``name`` among a few: their place in a hash map of Scala's, of sixteen
    places. Nothing rests on it but how long it waits.
    """
    hashed = 0
    for letter in name:
        hashed = (31 * hashed + ord(letter)) & 0xFFFFFFFF
    return (hashed ^ (hashed >> 16)) & 15


def _first_actions(observation: Observation, wait_s: float) -> Mapping[str, Any] | None:
    """Spark tells them a moment after the action, or never: ``get`` would wait for ever."""
    found: list[Mapping[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(observation.get), daemon=True)
    waiting.start()
    waiting.join(wait_s)
    return found[0] if found and found[0] else None


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
