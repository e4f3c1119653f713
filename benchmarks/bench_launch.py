"""What ``dg launch`` costs on a warm Spark: ``python -m benchmarks.bench_launch``.

Starts Kafka, PostgreSQL and a warm Spark of its own. Each round appends records to topics that have
been read to their ends, and launches each pipeline, which reads them, and once more, which finds
nothing; all cases in turn, so look at their ratios. Each is a project of its own, with the settings
of ``dagster_defs/dagster.yaml`` in its ``DAGSTER_HOME``. ``--against`` another checkout calls that
one's code as well, with the same servers. ``--command "dagster job execute"`` is another way.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import yaml

from benchmarks.bench_fresh import Spent, tell, timed
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
from eo_pipeline.spark.connector import spark_connector_jars
from tests.dagster.projects import write_project

#: What a person types, without what is launched: ``{package}`` and ``{name}`` are filled in.
COMMANDS = {
    "dg launch": "dg launch --assets {name}",
    "dagster job execute": "dagster job execute -m {package}.definitions -j {name}_job",
    "dagster asset materialize": (
        "dagster asset materialize -m {package}.definitions --select {name}"
    ),
}
SETTINGS = CHECKOUT / "dagster_defs" / "dagster.yaml"


class Project:
    """A folder with one pipeline, and a ``DAGSTER_HOME`` in it."""

    def __init__(self, case: Case, on: Servers, checkout: Path) -> None:
        self._folder, self._name = on.scratch / f"project_of_{case.topic}", case.topic
        document = yaml.safe_dump(config(case, on), sort_keys=False)
        self._package = write_project(self._folder, document, name="pipeline").name
        home = self._folder / "home"
        home.mkdir()
        (home / "dagster.yaml").write_text(SETTINGS.read_text())
        self._environment = {
            **os.environ,
            "DAGSTER_HOME": str(home),
            "EO_SPARK_JARS": str(spark_connector_jars(STATE)[0].parent),
            "PYTHONPATH": os.pathsep.join([str(self._folder), str(checkout)]),
        }

    def launched(self, typed: str) -> Spent:
        """By one of :data:`COMMANDS`."""
        program, *rest = typed.format(package=self._package, name=self._name).split()
        command = [str(Path(sys.executable).with_name(program)), *rest]
        return timed(command, self._environment, self._folder)


def measure(
    asked: argparse.Namespace, cases: Sequence[Case], checkouts: dict[str, Path]
) -> dict[tuple[str, Case], list[Spent]]:
    """What each launch of each case cost in every round, without those that warm up."""
    spent: dict[tuple[str, Case], list[Spent]] = {}
    with tempfile.TemporaryDirectory(prefix="eo-launch-") as folder, ExitStack() as stack:
        on = stack.enter_context(servers(Path(folder), connect=True))
        make_topics(on.kafka.bootstrap_servers, cases)
        projects = {case: Project(case, on, checkouts[case.code]) for case in cases}
        for turn in range(asked.warm_up + asked.rounds):
            records = asked.records if turn else max(BEFORE, asked.records)
            for case in cases:
                append(on.kafka.bootstrap_servers, case.topic, records, case.partitions, 0.0)
            for verb in ("new records", "nothing new"):
                for case in cases:
                    found = projects[case].launched(COMMANDS[asked.command])
                    if turn >= asked.warm_up:
                        spent.setdefault((verb, case), []).append(found)
    return spent


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--records", type=int, default=8_000, help="new ones at each launch")
    parser.add_argument("--partitions", type=int, default=8)
    parser.add_argument("--sinks", nargs="+", default=["delta", "postgres"])
    parser.add_argument("--command", choices=COMMANDS, default="dg launch")
    parser.add_argument("--against", type=Path, help="another checkout, to be compared with")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=3)
    return parser.parse_args()


def main() -> None:
    """Print the medians of each launch."""
    asked = arguments()
    checkouts = {"this": CHECKOUT} | ({"that": asked.against} if asked.against else {})
    cases = [
        Case(code, "connect", sink, asked.partitions) for sink in asked.sinks for code in checkouts
    ]
    for (verb, case), found in measure(asked, cases, checkouts).items():
        tell(verb, case, found)


if __name__ == "__main__":
    main()
