"""What a command waits for before it begins: imports are most of a run that finds nothing new."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.engine import Bench

#: Drivers of stores, and what only a part of the commands needs; each takes a tenth of a second.
NOT_BEFORE_THEY_ARE_NEEDED = {
    *("psycopg", "pymysql", "redis", "deltalake", "pyiceberg", "fakeredis"),
    *("dagster", "grpc", "pandas", "pyspark", "jinja2", "pyarrow", "numpy"),
    *("opentelemetry", "openlineage", "prometheus_client"),
    *("eo_pipeline.audit", "eo_pipeline.batch.stage"),
}

ONE_RUN = """
import json, sys
from eo_pipeline._process import this_process_ends
this_process_ends()  # as a command does
from eo_pipeline import Pipeline
report = Pipeline.from_config(json.loads(sys.argv[1])).run()
print(len(report.checkpoints), *sys.modules)
"""


def test_a_command_waits_for_no_driver_that_its_sink_does_not_need() -> None:
    told = "import sys, eo_pipeline.cli.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert not NOT_BEFORE_THEY_ARE_NEEDED & set(done.stdout.split())


@pytest.mark.parametrize("sink", ["delta", "postgres"])
def test_a_store_is_asked_for_its_ledger_without_what_reads_and_writes_rows(sink: str) -> None:
    told = f"import sys, eo_pipeline.sinks.{sink}.session; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert not {"pyarrow", "numpy", "pandas"} & set(done.stdout.split())


def test_a_command_waits_for_no_other_commands_code() -> None:
    told = """
import sys
from typer.testing import CliRunner
from eo_pipeline.cli.app import app
assert CliRunner().invoke(app, ["run", "--help"]).exit_code == 0
print(*sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    others = {
        f"eo_pipeline.cli.{each}" for each in ("auditing", "doctor", "init", "looking", "spark")
    }
    assert "eo_pipeline.cli.run" in done.stdout.split()
    assert not others & set(done.stdout.split())


@pytest.mark.core
def test_a_run_that_finds_nothing_new_imports_no_spark_and_nothing_that_reads(bench: Bench) -> None:
    bench.topic.write(10)
    bench.pipeline().run()
    command = [sys.executable, "-c", ONE_RUN, json.dumps(bench.config)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    checkpoints, *modules = done.stdout.split()
    assert checkpoints == "0"
    read = {"pyspark", "py4j", "pandas", "grpc", "eo_pipeline.batch.stage", "eo_pipeline.audit"}
    read |= {"pyarrow", "numpy"}
    # nobody asked for these
    watching = {"opentelemetry", "openlineage", "requests", "eo_pipeline.observers.otel"}
    assert not (read | watching) & set(modules)


def test_a_run_on_a_warm_spark_does_without_pandas(bench: Bench) -> None:
    """pyspark's client imports it, and it takes longer than all the rest of that."""
    bench.topic.write(10)
    in_memory = {**bench.config, "inline_records": 1_000}
    # with the first entry, from files; and from memory
    for checkpoints, config in (("2", bench.config), ("1", in_memory)):
        command = [sys.executable, "-c", ONE_RUN, json.dumps(config)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        found, *modules = done.stdout.split()
        assert found == checkpoints
        assert "pyspark.sql.connect.session" in modules
        assert "pandas" not in modules
        bench.topic.write(10)
