"""Metrics of one action, collected while it runs, on a classic session and over Spark Connect."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Mapping
from typing import Any

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
        """``times``: over Spark Connect, under so many names. When a job has written its files a
        server waits a tenth of a second for each name's metrics, one after the other, and then
        says that there are none (``Observation.getOrEmpty`` of Spark 4.0); all of them come at
        once, when the server gets round to it. A server that keeps plans says nothing at all:
        see ``STAGING_SETTINGS``.
        """
        moment = F.current_timestamp().cast("string").alias(ACTION)
        name = f"eo-{uuid.uuid4().hex}"
        if is_connect(frame):
            # no Observation: pyspark cannot put together a plan that has one twice
            self._observation = None
            self._names = [f"{name}-{n}" for n in range(times)]
            for each in self._names:
                frame = frame.observe(each, *metrics, moment)
        else:
            self._observation = Observation(name)
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
        return next(filter(None, (flows.get(name) for name in self._names)), None)


def _first_actions(observation: Observation, wait_s: float) -> Mapping[str, Any] | None:
    """Spark tells them a moment after the action, or never: ``get`` would wait for ever."""
    found: list[Mapping[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(observation.get), daemon=True)
    waiting.start()
    waiting.join(wait_s)
    return found[0] if found and found[0] else None
