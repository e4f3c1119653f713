"""eo-pipeline itself."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from benchmarks.suite.errors import MeasurementError
from benchmarks.suite.peers.peer import Mode, ProgramPeer
from benchmarks.suite.room import PROGRAMS
from benchmarks.suite.stores import Store
from benchmarks.suite.target import Target
from benchmarks.suite.topic import Topic
from tests.support.rest_catalog import catalog_at

_EO = (sys.executable, "-m", "eo_pipeline.cli")


class Ours(ProgramPeer):
    """``eo run`` as a user types it; warm: ``Pipeline.run()`` in a process that stays."""

    PROGRAM: ClassVar[str] = "eo-pipeline"
    PROMISE: ClassVar[str] = (
        "Exactly once into every store; goes back to any checkpoint and audits."
    )
    SETTINGS: ClassVar[str] = (
        "Defaults, lineage columns included. Cold: `eo run` after `make setup`. Server: `eo "
        "run` on a warm Spark Connect server. Warm: `Pipeline.run()` in a process that stays, "
        "on that server."
    )

    @property
    def name(self) -> str:
        return f"eo-pipeline → {self.store}"

    def command(self) -> Sequence[str]:
        return [sys.executable, str(PROGRAMS / "ours.py")]

    def line(self, topic: Topic, target: Target) -> str:
        return self.filled_in(json.dumps(self._document(topic, target)))

    def run(self, topic: Topic, target: Target) -> float:
        if self.mode is Mode.WARM:
            return super().run(topic, target)
        document = target.folder / "pipeline.yaml"
        document.write_text(self.line(topic, target))  # JSON is YAML
        if target.bucket:  # as `make setup` does for its own jars
            archive = [*_EO, "spark", "archive", "-f", str(document)]
            self.room.start(f"{self._key}-archive", archive).finish(self.room.limit)
        command = [*_EO, "run", "-f", str(document)]
        started = time.perf_counter()
        self.room.start(self._key, command).finish(self.room.limit)
        return time.perf_counter() - started

    def check(self, topic: Topic, target: Target) -> None:
        if self.workload.bad:
            wanted, held = self.workload.bad(topic.records), target.dead_letters()
            if held != wanted:
                raise MeasurementError(f"{held:,} dead letters for {wanted:,} bad records")

    def _document(self, topic: Topic, target: Target) -> Mapping[str, Any]:
        workload = self.workload
        source = {"bootstrap_servers": topic.bootstrap, "topics": [topic.name], **workload.source}
        document = {
            "name": target.name,
            "source": source,
            "sink": {**self._sink(target), **workload.sink},
            "staging": str(target.folder / "staging"),
        }
        if target.bucket:
            key, secret = target.bucket.keys
            document["storage"] = {
                "endpoint": target.bucket.endpoint,
                "access_key_id": key,
                "secret_access_key": secret,
            }
        if workload.transform:
            document["transform"] = workload.transform
        if self.mode is Mode.COLD:
            document["spark"] = {"warm": False}  # though somebody's may run here
        else:
            document["spark"] = {"remote": self.room.remote}
        return document

    def _sink(self, target: Target) -> Mapping[str, Any]:
        if self.store is Store.DELTA:
            return {"type": "delta", "path": target.table}
        if self.store is Store.ICEBERG:
            assert target.bucket is not None, "Iceberg tables are in a bucket"
            return {
                "type": "iceberg",
                "table": target.iceberg,
                "location": target.table,
                "catalog": catalog_at(target.bucket.catalog),
            }
        if self.store is Store.KAFKA:
            return {
                "type": "kafka",
                "bootstrap_servers": target.bootstrap,
                "topic": target.name,
            }
        return {"type": "postgres", "dsn": target.dsn, "table": target.name}
