"""Processor time for rows that are a minute old at most: ``python -m benchmarks.bench_freshness``.

A producer appends 8,000 records a minute to a topic. Side by side, over the same minutes, they go
into PostgreSQL by four programs: ``eo run`` each minute on a warm Spark (whose processor time
counts), ``eo run --every 60s`` with a Spark of its own, and Structured Streaming and Flink left
running, with a micro-batch and a checkpoint a minute. The minutes before, ``--warm-up``, count for
nothing. Then each table is compared with the topic.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from benchmarks.bench_fresh import adopt_orphans, timed
from benchmarks.suite import topic as topics
from benchmarks.suite.peers.flink import Flink
from benchmarks.suite.peers.ours import Ours
from benchmarks.suite.peers.peer import Mode
from benchmarks.suite.peers.structured_streaming import StructuredStreaming
from benchmarks.suite.program import Program
from benchmarks.suite.room import STATE, Room
from benchmarks.suite.scenarios import check, say
from benchmarks.suite.stores import Store
from benchmarks.suite.target import Target
from benchmarks.suite.topic import Topic

PARTITIONS = 8
_MINUTE_S = 60.0
#: How often the producer appends.
_APPENDS = 10
_LIMIT_S = 120.0


def cpu_s(pid: int) -> float:
    """Return the processor time of a process and all that it started, ended children included."""
    process = psutil.Process(pid)
    times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
    own = sum(each.user + each.system for each in times)
    return float(own + sum(each.children_user + each.children_system for each in times))


def streaming(room: Room, topic: Topic, target: Target) -> Program:
    """Return Structured Streaming at work."""
    peer = StructuredStreaming(room, Store.POSTGRES)
    peer.install()
    program = room.start("streaming-left-running", peer.command())
    line = peer.line(topic, target)
    program.begin(line[:-1] + ', "every": "60 seconds"}')
    return program


def flink(room: Room, topic: Topic, target: Target) -> Program:
    """Return Flink at work."""
    peer = Flink(room, Store.POSTGRES)
    peer.install()
    program = room.start("flink-left-running", peer.command())
    script = Path(peer.line(topic, target))
    text = script.read_text().replace(", 'scan.bounded.mode' = 'latest-offset'", "")
    text, changed = re.subn(r"(checkpointing\.interval = )1 s", r"\g<1>60 s", text)
    assert changed
    script.write_text(text.replace("'1 s'", "'60 s'"))
    program.begin(str(script))
    return program


def eo_run(room: Room, topic: Topic, target: Target, mode: Mode) -> list[str]:
    """Return the command."""
    document = target.folder / "pipeline.yaml"
    document.write_text(Ours(room, Store.POSTGRES, mode).line(topic, target))
    return [sys.executable, "-m", "eo_pipeline.cli", "run", "-f", str(document)]


def every_minute(room: Room, topic: Topic, target: Target) -> Program:
    """Return ``eo run --every`` at work, with a Spark of its own."""
    command = eo_run(room, topic, target, Mode.COLD)
    return room.start("eo-run-every", [*command, "--every", "60s"])


class EachMinute:
    """``eo run`` on a warm Spark of this room."""

    def __init__(self, room: Room, topic: Topic, target: Target) -> None:
        self._room = room
        self._command = eo_run(room, topic, target, Mode.SERVER)
        self._runs_s = 0.0

    def run(self) -> None:
        """Run once."""
        self._runs_s += timed(self._command, self._room.environment()).cpu_s

    def cpu_s(self) -> float:
        """Return the processor time of all runs and of Spark."""
        return self._runs_s + cpu_s(self._room.spark_pid)


def main() -> None:
    """Measure, and compare what they wrote."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--warm-up", type=int, default=10)
    parser.add_argument("--records", type=int, default=8_000, help="a minute")
    asked = parser.parse_args()
    adopt_orphans()
    with Room(STATE / "bench", float("inf"), _LIMIT_S) as room:
        name = f"end-freshness-{int(time.time())}"
        topic = Topic(room.kafka.bootstrap_servers, name, 0, PARTITIONS)
        topics.create(topic.bootstrap, name, PARTITIONS)
        targets = [room.target(Store.POSTGRES) for _ in range(4)]
        left_running = {
            "Structured Streaming": streaming(room, topic, targets[1]),
            "Flink": flink(room, topic, targets[2]),
            "eo run --every 60s": every_minute(room, topic, targets[3]),
        }
        ours = EachMinute(room, topic, targets[0])
        spent: dict[str, Callable[[], float]] = {"eo run each minute": ours.cpu_s}
        spent |= {who: partial(cpu_s, each.pid) for who, each in left_running.items()}
        before, first = dict.fromkeys(spent, 0.0), 0
        for minute in range(asked.warm_up + asked.minutes):
            if minute == asked.warm_up:
                before, first = {who: read() for who, read in spent.items()}, topic.records
            begun = time.monotonic()
            for step in range(1, _APPENDS + 1):
                topic = topic.appended(asked.records // _APPENDS)
                time.sleep(max(begun + step * _MINUTE_S / _APPENDS - time.monotonic(), 0))
            ours.run()
        after = {who: read() for who, read in spent.items()}
        time.sleep(2 * _MINUTE_S)
        for target in targets:
            check(topic, target)
        records = topic.records - first
        for who in spent:
            used = after[who] - before[who]
            say(f"{who:<24} {used:7.1f} CPU s, {used / records * 1e6:7.0f} for a million records")
        for program in left_running.values():
            program.kill()


if __name__ == "__main__":
    main()
