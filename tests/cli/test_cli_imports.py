"""What a command waits for before it begins: imports are most of a run that finds nothing new."""

from __future__ import annotations

import subprocess
import sys

#: Drivers of stores, and what only a part of the commands needs; each takes a tenth of a second.
NOT_BEFORE_THEY_ARE_NEEDED = {
    *("psycopg", "pymysql", "redis", "deltalake", "pyiceberg", "fakeredis"),
    *("dagster", "grpc", "pandas"),
}


def test_a_command_waits_for_no_driver_that_its_sink_does_not_need() -> None:
    told = "import sys, eo_pipeline.cli.app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", told], capture_output=True, text=True, check=True)
    assert not NOT_BEFORE_THEY_ARE_NEEDED & set(done.stdout.split())
