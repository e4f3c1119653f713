"""A loader written by hand for one table."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import ClassVar

from benchmarks.suite.peers.peer import ProgramPeer
from benchmarks.suite.room import PROGRAMS
from benchmarks.suite.stores import Store
from benchmarks.suite.target import Target
from benchmarks.suite.topic import Topic
from benchmarks.suite.workloads.workload import Workload


class HandWritten(ProgramPeer):
    """confluent-kafka, ``json.loads``, COPY, and the offsets in the same transaction."""

    PROGRAM: ClassVar[str] = "hand-written loader"
    PROMISE: ClassVar[str] = (
        "Exactly once: offsets are in the transaction of the rows. No schema check, no bad "
        "records, one table."
    )
    SETTINGS: ClassVar[str] = (
        "Python, one process: `consume()` of 10,000 records, `json.loads`, COPY, transactions "
        "of up to 500,000 records, `fetch.wait.max.ms=10`."
    )

    @classmethod
    def takes(cls, workload: Workload, store: Store) -> bool:
        return super().takes(workload, store) and workload.by_hand

    def command(self) -> Sequence[str]:
        return [sys.executable, str(PROGRAMS / "hand_written.py")]

    def line(self, topic: Topic, target: Target) -> str:
        return json.dumps(
            {
                "bootstrap": topic.bootstrap,
                "topic": topic.name,
                "dsn": target.dsn,
                "table": target.name,
                "workload": self.workload.key,
            }
        )
