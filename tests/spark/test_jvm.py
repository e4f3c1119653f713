"""A run's JVM boots while the run imports pyspark: there is one, and it goes with its process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from eo_pipeline.spark import JARS_VARIABLE
from eo_pipeline.spark.connector import spark_connector_jars
from tests.support.engine import Bench
from tests.support.servers import STATE, is_gone, wait_until

pytestmark = pytest.mark.slow

#: Begins a JVM, makes a session with settings that may be others, and says which JVMs there were.
_PROCESS = """
import json, sys
from eo_pipeline.spark import jvm as begun
from eo_pipeline.spark import SparkSettings
first, then = (SparkSettings(warm=False, **each) for each in json.loads(sys.argv[1]))
first.begin()
first.begin()
[waiting] = begun._pending
early = "pyspark" in sys.modules
if sys.argv[2:] == ["dies"]:
    print(json.dumps({"begun": waiting.process.pid}), flush=True)
    raise SystemExit(1)
spark = then.session()
from eo_pipeline.spark.driver import driver_pid
print(json.dumps({
    "early": early,
    "begun": waiting.process.pid,
    "used": driver_pid(),
    "ended": waiting.process.wait(60) if waiting.process.pid != driver_pid() else None,
    "folder": waiting.connection.parent.exists(),
    "heap": spark._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20,
}))
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (jars := tmp_path / "jars").mkdir()
    for jar in spark_connector_jars(STATE):
        (jars / jar.name).symlink_to(jar)
    kept = {k: v for k, v in os.environ.items() if k != "SPARK_REMOTE"}
    return kept | {JARS_VARIABLE: str(jars)}


def told(environment: dict[str, str], *settings: dict[str, str], dies: bool = False) -> Any:
    command = [sys.executable, "-c", _PROCESS, json.dumps(settings), *(["dies"] if dies else [])]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=240, check=not dies
    )
    return json.loads(done.stdout)


def test_the_session_has_the_jvm_that_was_begun(environment: dict[str, str]) -> None:
    said = told(environment, {"driver_memory": "700m"}, {"driver_memory": "700m"})
    assert said["used"] == said["begun"]
    assert not said["early"], "pyspark was imported before"
    assert not said["folder"], "what told where it listens is left"


def test_one_of_other_settings_ends_and_is_not_taken(environment: dict[str, str]) -> None:
    said = told(environment, {"driver_memory": "700m"}, {"driver_memory": "900m"})
    assert said["used"] != said["begun"]
    assert said["ended"] is not None
    assert said["heap"] > 750


def test_one_that_nobody_took_goes_with_its_process(environment: dict[str, str]) -> None:
    pid = told(environment, {}, {}, dies=True)["begun"]
    wait_until(lambda: is_gone(pid))


#: `eo`, which says when it starts a JVM, and whether pyspark was there by then.
_EO = """
import sys
from eo_pipeline.spark import jvm as begun
start = begun._start
def started(*told):
    print("STARTED", "pyspark" in sys.modules, flush=True)
    return start(*told)
begun._start = started
from eo_pipeline.cli import main
main()
"""


def test_a_run_starts_one_jvm_before_it_imports_pyspark(bench: Bench, tmp_path: Path) -> None:
    bench.topic.write(60, partitions=range(4))
    document = tmp_path / "pipeline.yaml"
    document.write_text(yaml.safe_dump(bench.config))
    done = subprocess.run(
        [sys.executable, "-c", _EO, "run", "-f", str(document)],
        capture_output=True,
        text=True,
        timeout=240,
        env={k: v for k, v in os.environ.items() if k != "SPARK_REMOTE"},
    )
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "STARTED" in line] == ["STARTED False"]
    bench.table.assert_holds_once(bench.topic.written)
