"""What a command costs that a shell, a cron job or a launcher starts anew each time:
``python -m benchmarks.bench_fresh``.

Starts Kafka, PostgreSQL and a warm Spark of its own. Each round appends records to topics that have
been read to their ends, and calls ``eo run``, which reads them, ``eo run`` again, which finds
nothing, and ``eo status``; all cases in turn, so look at their ratios. ``--against`` another
checkout calls that one's code as well, with the same servers. ``--spark classic`` has each run
start a Spark of its own, with the archive that `make setup` made; what its JVM takes is counted,
also after the command has ended.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import psutil
import yaml

from benchmarks.bench_small import (
    BEFORE,
    CHECKOUT,
    STATE,
    Case,
    Servers,
    append,
    config,
    make_topics,
    servers,
)
from eo_pipeline.spark.class_archive import CACHE_VARIABLE
from eo_pipeline.spark.connector import spark_connector_jars

#: Of ``prctl``: who loses its parent becomes this process's child.
_SET_CHILD_SUBREAPER = 36

#: A name for each call of a round, and the call.
VERBS = {"run": ["run"], "nothing new": ["run"], "status": ["status"]}


class Spent(NamedTuple):
    """Of one process and all it started."""

    wall_s: float
    cpu_s: float


def adopt_orphans() -> None:
    """Make processes that outlive their parents children of this one, so that :func:`timed` counts
    them.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def called(arguments: Sequence[str], checkout: Path, document: Path) -> Spent:
    """``eo`` in a process of its own.

    Raises:
        SystemExit: it failed.
    """
    environment = os.environ | {
        "PYTHONPATH": str(checkout),
        "EO_SPARK_JARS": str(spark_connector_jars(STATE)[0].parent),
        CACHE_VARIABLE: str(STATE / "cache"),
    }
    # -P: the working directory is a checkout, too
    command = [sys.executable, "-P", "-m", "eo_pipeline.cli", *arguments, "-f", str(document)]
    return timed(command, environment)


def timed(
    command: Sequence[str], environment: Mapping[str, str], folder: Path | None = None
) -> Spent:
    """``command`` in a process of its own, called in ``folder``.

    Raises:
        SystemExit: it failed.
    """
    there, before = _children(), os.times()
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    wall_s = os.times().elapsed - before.elapsed
    for left in _children() - there:  # a JVM that ends after its owner
        os.waitpid(left, 0)
    after = os.times()
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
    used = after.children_user - before.children_user
    used += after.children_system - before.children_system
    return Spent(wall_s, used)


def _children() -> set[int]:
    return {each.pid for each in psutil.Process().children()}


def measure(
    asked: argparse.Namespace, cases: Sequence[Case], checkouts: dict[str, Path]
) -> dict[tuple[str, Case], list[Spent]]:
    """What each call of each case cost in every round, without those that warm up."""
    spent: dict[tuple[str, Case], list[Spent]] = {}
    connect = any(case.spark == "connect" for case in cases)
    with tempfile.TemporaryDirectory(prefix="eo-fresh-") as folder, ExitStack() as stack:
        on = stack.enter_context(servers(Path(folder), connect=connect))
        make_topics(on.kafka.bootstrap_servers, cases)
        documents = {case: written(case, on) for case in cases}
        for turn in range(asked.warm_up + asked.rounds):
            records = asked.records if turn else max(BEFORE, asked.records)
            for case in cases:
                append(on.kafka.bootstrap_servers, case.topic, records, case.partitions, 0.0)
            for verb, arguments in VERBS.items():
                for case in cases:
                    found = called(arguments, checkouts[case.code], documents[case])
                    if turn >= asked.warm_up:
                        spent.setdefault((verb, case), []).append(found)
    return spent


def written(case: Case, on: Servers) -> Path:
    """The document of ``case``."""
    path = on.scratch / f"{case.topic}.yaml"
    spark = {} if case.spark == "connect" else {"spark": {"warm": False}}
    path.write_text(yaml.safe_dump(config(case, on) | spark))
    return path


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=8_000, help="new ones at each run")
    parser.add_argument("--partitions", type=int, nargs="+", default=[8])
    parser.add_argument("--sinks", nargs="+", default=["delta", "postgres"])
    parser.add_argument("--spark", nargs="+", default=["connect"], help="connect, classic")
    parser.add_argument("--against", type=Path, help="another checkout, to be compared with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=2)
    return parser.parse_args()


def tell(verb: str, case: Case, found: Sequence[Spent]) -> None:
    """A line of medians."""
    wall = sorted(each.wall_s for each in found)
    cpu = statistics.median(each.cpu_s for each in found)
    told = f"{statistics.median(wall):6.3f} s, best {wall[0]:.3f} s, CPU {cpu:.3f} s"
    sys.stdout.write(f"{verb:<12} {case.topic:<28} {told}\n")


def main() -> None:
    """Print the medians of each call."""
    asked = arguments()
    adopt_orphans()
    checkouts = {"this": CHECKOUT} | ({"that": asked.against} if asked.against else {})
    cases = [
        Case(code, spark, sink, partitions)
        for spark in asked.spark
        for sink in asked.sinks
        for partitions in asked.partitions
        for code in checkouts
    ]
    for (verb, case), found in measure(asked, cases, checkouts).items():
        tell(verb, case, found)


if __name__ == "__main__":
    main()
