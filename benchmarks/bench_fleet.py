"""What many pipelines in one Dagster cost while nothing happens: loading, a round, and the hour.

Starts a Kafka broker with five topics for each pipeline and a PostgreSQL, declares the pipelines,
a document each (every tenth writes a Delta table), and runs each once, so that it is idle. Then it
measures, in this order:

- loading: the definitions, in a process of their own, as every run and the code server do;
- a round: each sensor's tick, as the code server evaluates it;
- the hour: `dagster dev` with its sensors on, CPU time of its processes in ``--minutes`` that begin
  so many minutes after its start as ``--after`` says, perhaps several times;
- empty: the same of a code location with one asset and nothing else: Dagster's own share.

    python -m benchmarks.bench_fleet [--alone] [--pipelines 200] [--after 3 10] [--minutes 2]
        [--parts load round hour empty]

``--alone`` gives every pipeline its own sensors and jobs instead of the fleet's.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from confluent_kafka.admin import AdminClient, NewTopic

from eo_pipeline.embedded.kafka import EmbeddedKafka
from eo_pipeline.embedded.ports import HOST, free_port
from eo_pipeline.embedded.postgres import EmbeddedPostgres
from eo_pipeline.pipeline import Pipeline

TOPICS_EACH = 5
DELTA_EVERY = 10
ROUNDS = 5
PARTS = ("load", "round", "hour")
AFTER = (3.0,)
STARTS_WITHIN_S = 300.0

_DOCUMENT = """\
type: eo_pipeline.dagster.KafkaPipelineComponent
attributes:
  name: {name}
  source:
    bootstrap_servers: "{kafka}"
    topics: [{topics}]
    value_schema: "id BIGINT NOT NULL, amount DECIMAL(12,2), name STRING"
  sink: {sink}
  staging: {folder}/staging
  sensors: running
"""
_DEFINITIONS = """\
from pathlib import Path

import dagster as dg

from eo_pipeline.dagster import {imports}


@dg.definitions
def defs() -> dg.Definitions:
    return load_pipelines(Path(__file__).parent{fleet})
"""
_PROJECT = """\
[project]
name = "many"
version = "1"

[tool.dg]
directory_type = "project"

[tool.dg.project]
root_module = "many"
code_location_target_module = "many.definitions"
code_location_name = "many.definitions"
"""
_EMPTY = """\
import dagster as dg


@dg.asset
def alone() -> None: ...


defs = dg.Definitions(assets=[alone])
"""
#: As dagster_defs/dagster.yaml, and the runs go nowhere: there is nothing to read.
_INSTANCE = Path(__file__).parents[1] / "dagster_defs" / "dagster.yaml"

_LOAD = """
import json, resource, sys, time
began = time.perf_counter()
from many.definitions import defs
imported = time.perf_counter()
made = defs()
made.get_repository_def().load_all_definitions()
spent = resource.getrusage(resource.RUSAGE_SELF)
loaded = time.perf_counter() - imported
cpu, mib = spent.ru_utime + spent.ru_stime, spent.ru_maxrss / 1024
print(json.dumps({"import": imported - began, "load": loaded, "cpu": cpu, "MiB": mib}))
"""
_TICK = """
import json, sys, time
import dagster as dg
from many.definitions import defs
from eo_pipeline.dagster import fleet_sensors
fleet_sensors.EARLY_S = 1e9  # a round is due whenever it is asked for
made = defs()
repository = made.get_repository_def()
sensors, rounds = list(repository.sensor_defs), int(sys.argv[1])
with dg.DagsterInstance.get() as instance:
    cursors, told = {}, {}
    for number in range(rounds):
        for sensor in sensors:
            wall, cpu = time.perf_counter(), time.process_time()
            context = dg.build_sensor_context(
                instance=instance, cursor=cursors.get(sensor.name), definitions=made,
                sensor_name=sensor.name)
            with context:
                answer = sensor.evaluate_tick(context)
            cursors[sensor.name] = answer.cursor
            for event in answer.asset_events:
                instance.report_runless_asset_event(event)
            spent = (time.perf_counter() - wall, time.process_time() - cpu)
            told.setdefault((number, sensor.name.rpartition("_")[2]), []).append(spent)
    for (number, kind), each in told.items():
        wall, cpu = (round(sum(part), 3) for part in zip(*each))
        said = {"round": number, "kind": kind, "sensors": len(each), "wall": wall, "cpu": cpu}
        print(json.dumps(said))
    print(json.dumps({"cursor_bytes": sum(len(c or "") for c in cursors.values())}))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--alone", action="store_true", help="every pipeline its own sensors")
    parser.add_argument("--pipelines", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--after", nargs="+", type=float, default=AFTER, metavar="MINUTES")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--folder", type=Path, help="keep what was made, for another look")
    parser.add_argument("--parts", nargs="+", choices=(*PARTS, "empty"), default=PARTS)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = (given.folder or Path(made)).absolute()
        if "empty" in given.parts:
            the_hour(nothing(folder / "empty"), instance(folder / "empty"), given)
        if not {*given.parts} & {*PARTS}:
            return
        with EmbeddedKafka(folder / "kafka") as kafka, EmbeddedPostgres(folder / "pg") as postgres:
            names = [f"p{number:03d}" for number in range(given.pipelines)]
            declare(folder, names, kafka.bootstrap_servers, postgres.dsn, alone=given.alone)
            first_runs(folder, names, kafka.bootstrap_servers)
            home = instance(folder)
            if "load" in given.parts:
                for _ in range(3):
                    say("load:", *asked(folder, home, _LOAD))
            if "round" in given.parts:
                say("round:", *asked(folder, home, _TICK, str(given.rounds)), between="\n  ")
            if "hour" in given.parts:
                the_hour(folder, home, given)


def say(*words: str, between: str = " ") -> None:
    sys.stdout.write(between.join(words) + "\n")
    sys.stdout.flush()


def instance(folder: Path) -> Path:
    """The folder of a Dagster instance."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (home / "dagster.yaml").write_text(_INSTANCE.read_text())
    return home


def nothing(folder: Path) -> Path:
    """A project with one asset."""
    package = folder / "many"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (package / "definitions.py").write_text(_EMPTY)
    return folder


def declare(folder: Path, names: list[str], kafka: str, dsn: str, *, alone: bool) -> None:
    """The project, a document for each pipeline."""
    package = folder / "many"
    package.mkdir(parents=True, exist_ok=True)
    (package / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(_PROJECT)
    imports, fleet = (
        ("load_pipelines", "")
        if alone
        else ("Fleet, load_pipelines", ', fleet=Fleet(sensors="running")')
    )
    (package / "definitions.py").write_text(_DEFINITIONS.format(imports=imports, fleet=fleet))
    for number, name in enumerate(names):
        lake = number % DELTA_EVERY == DELTA_EVERY - 1
        sink = (
            f"{{type: delta, path: {folder}/lake/{name}}}"
            if lake
            else f'{{type: postgres, dsn: "{dsn}", table: {name}}}'
        )
        topics = ", ".join(topics_of(name))
        place = package / "defs" / name
        place.mkdir(parents=True, exist_ok=True)
        text = _DOCUMENT.format(name=name, kafka=kafka, topics=topics, sink=sink, folder=folder)
        (place / "defs.yaml").write_text(text)


def topics_of(name: str) -> list[str]:
    """What a pipeline reads."""
    return [f"{name}_{number}" for number in range(TOPICS_EACH)]


def first_runs(folder: Path, names: list[str], kafka: str) -> None:
    """The topics, and of each pipeline the ledger's first entry: where reading starts."""
    made = folder / "made"
    if made.exists():
        return
    import yaml

    admin = AdminClient({"bootstrap.servers": kafka, "log_level": 0})
    wanted = [NewTopic(topic, 1, 1) for name in names for topic in topics_of(name)]
    for first in range(0, len(wanted), 200):
        for future in admin.create_topics(wanted[first : first + 200]).values():
            future.result()
    began = time.perf_counter()
    for name in names:
        document = yaml.safe_load((folder / "many" / "defs" / name / "defs.yaml").read_text())
        fields = document["attributes"]
        del fields["sensors"]
        Pipeline.from_config(fields).run()
    made.touch()
    say(f"{len(names)} first runs: {time.perf_counter() - began:.1f} s")


def asked(folder: Path, home: Path, program: str, *arguments: str) -> list[str]:
    """The lines that ``program`` prints, in a process of its own."""
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        cwd=folder,
        env=environment(folder, home),
        check=True,
        capture_output=True,
        text=True,
    )
    return [line for line in said.stdout.splitlines() if line.startswith("{")]


def environment(folder: Path, home: Path) -> dict[str, str]:
    return {**os.environ, "DAGSTER_HOME": str(home), "PYTHONPATH": str(folder)}


def the_hour(folder: Path, home: Path, given: argparse.Namespace) -> None:
    """CPU seconds a second of Dagster's processes, some minutes after their start."""
    began = time.perf_counter()
    with dagster_dev(folder, home) as (process, ready):
        say(f"dagster dev of {folder.name}: loaded after {ready - began:.1f} s")
        for after in sorted(given.after):
            time.sleep(max(0.0, ready + after * 60 - time.perf_counter()))
            say(f"  minutes {after:g} to {after + given.minutes:g}:", shares(process.pid, given))
    for line in asked(folder, home, _TICKS_TOLD):
        say(" ", line)


def shares(pid: int, given: argparse.Namespace) -> str:
    """Of one core, by role and together, in the next ``--minutes``."""
    before, since = spent(pid), time.perf_counter()
    time.sleep(given.minutes * 60)
    after, seconds = spent(pid), time.perf_counter() - since
    used = {role: after[role] - before.get(role, 0.0) for role in sorted(after)}
    told = [f"{role} {100 * each / seconds:.1f}" for role, each in used.items()]
    return f"{100 * sum(used.values()) / seconds:.1f} % of a core ({', '.join(told)})"


_TICKS_TOLD = """
import collections, json, statistics
import dagster as dg
from dagster._core.scheduler.instigation import InstigatorType
with dg.DagsterInstance.get() as instance:
    told = collections.defaultdict(list)
    statuses = collections.Counter()
    for state in instance.all_instigator_state(instigator_type=InstigatorType.SENSOR):
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id):
            statuses[tick.status.value] += 1
            if tick.end_timestamp:
                kind = state.instigator_name.rpartition("_")[2]
                told[kind].append(tick.end_timestamp - tick.timestamp)
    for kind, seconds in told.items():
        print(json.dumps({"ticks": kind, "count": len(seconds),
            "median_s": round(statistics.median(seconds), 3), "max_s": round(max(seconds), 3)}))
    print(json.dumps({"statuses": dict(statuses)}))
"""


@contextmanager
def dagster_dev(folder: Path, home: Path) -> Iterator[tuple[subprocess.Popen[bytes], float]]:
    """As people run it; and when its code location was there."""
    program = str(Path(sys.executable).with_name("dagster"))
    port = str(free_port())
    log = home / "dev.log"
    with log.open("wb") as to:
        process = subprocess.Popen(
            [program, "dev", "-m", "many.definitions", "-h", HOST, "-p", port],
            cwd=folder,
            env=environment(folder, home),
            stdout=to,
            stderr=to,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + STARTS_WITHIN_S
            while not re.search(rb"Serving dagster-webserver", log.read_bytes()):
                if time.monotonic() > until or process.poll() is not None:
                    raise SystemExit(f"dagster dev did not start: {log.read_text()[-2000:]}")
                time.sleep(0.2)
            yield process, time.perf_counter()
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(120)


def spent(pid: int) -> dict[str, float]:
    """CPU seconds so far of the processes below ``pid``, those that ended included, by role."""
    told: dict[str, float] = {}
    parent = psutil.Process(pid)
    for each in [parent, *parent.children(recursive=True)]:
        try:
            words, times = " ".join(each.cmdline()), each.cpu_times()
        except psutil.NoSuchProcess:
            continue
        role = next((r for r, sign in _ROLES.items() if sign in words), "others")
        seconds = times.user + times.system + times.children_user + times.children_system
        told[role] = told.get(role, 0.0) + seconds
    return told


_ROLES = {
    "daemon": "dagster._daemon",
    "code server": "api grpc",
    "code server's proxy": "code-server start",
    "web server": "dagster_webserver",
}

if __name__ == "__main__":
    main()
