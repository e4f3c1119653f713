"""A plain install lacks the drivers of most stores: the package imports all the same."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

#: Runs in an interpreter of its own, in which no driver of an extra can be imported.
_IMPORTS = """
import sys
from importlib.abc import MetaPathFinder

STORES = ("deltalake", "pyiceberg", "pymysql", "redis")
REGISTRY = ("authlib", "fastavro", "grpc_tools", "httpx2", "ptars")
WATCHING = ("openlineage", "opentelemetry", "prometheus_client")

class Absent(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in (*STORES, *REGISTRY, *WATCHING, "dagster"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from eo_pipeline import (
    ConsoleSink, DeltaSink, IcebergSink, KafkaSink, MySqlSink, ParquetSink, PostgresSink, RedisSink
)
print(IcebergSink(table="sales.orders").table_name)
"""


def test_all_eight_sinks_can_be_named_without_the_packages_of_their_stores() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
