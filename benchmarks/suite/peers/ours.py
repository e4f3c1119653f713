"""eo-pipeline itself."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.suite.peers.peer import Mode, ProgramPeer
from benchmarks.suite.records import SPARK_SCHEMA
from benchmarks.suite.room import PROGRAMS
from benchmarks.suite.target import Store, Target
from benchmarks.suite.topic import Topic


class Ours(ProgramPeer):
    """``eo run`` as a user types it; warm: ``Pipeline.run()`` in a process that stays."""

    PROGRAM: ClassVar[str] = "eo-pipeline"
    PROMISE: ClassVar[str] = (
        "Exactly once into every store: rows and offsets in one transaction of the store. "
        "Runs end; going back to any checkpoint and an audit come with it."
    )
    SETTINGS: ClassVar[str] = (
        "Its defaults, with the lineage columns (topic, partition, offset, checkpoint) that it "
        "adds to each row. Cold: `eo run` with Spark in the same process. Server: `eo run` against "
        "a warm Spark Connect server. Warm: `Pipeline.run()` in a process that stays, against the "
        "same server."
    )

    @property
    def name(self) -> str:
        return f"eo-pipeline → {self.store}"

    def command(self) -> Sequence[str]:
        return [sys.executable, str(PROGRAMS / "ours.py")]

    def line(self, topic: Topic, target: Target) -> str:
        return json.dumps(self._document(topic, target))

    def run(self, topic: Topic, target: Target) -> float:
        if self.mode is Mode.WARM:
            return super().run(topic, target)
        document = target.folder / "pipeline.yaml"
        document.write_text(self.line(topic, target))  # JSON is YAML
        command = [sys.executable, "-m", "eo_pipeline.cli", "run", "-f", str(document)]
        started = time.perf_counter()
        self.room.start(self._key, command).finish(self.room.limit)
        return time.perf_counter() - started

    def _document(self, topic: Topic, target: Target) -> Mapping[str, Any]:
        source: dict[str, Any] = {"bootstrap_servers": topic.bootstrap, "topics": [topic.name]}
        if topic.raw:
            source["value_format"] = "raw"
        else:
            source["value_schema"] = SPARK_SCHEMA
        document = {
            "name": target.name,
            "source": source,
            "sink": self._sink(target),
            "staging": str(target.folder / "staging"),
        }
        if self.mode is not Mode.COLD:
            document["spark"] = {"remote": self.room.remote}
        return document

    def _sink(self, target: Target) -> Mapping[str, Any]:
        if self.store is Store.DELTA:
            return {"type": "delta", "path": str(target.lake)}
        if self.store is Store.KAFKA:
            return {
                "type": "kafka",
                "bootstrap_servers": target.bootstrap,
                "topic": target.name,
            }
        return {"type": "postgres", "dsn": target.dsn, "table": target.name}
