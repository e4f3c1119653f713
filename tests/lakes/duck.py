"""DuckDB with its extensions for Delta and Iceberg, in a process of its own: the extensions' wheels
are of another release than the DuckDB that the tests' environment has.

Asked on stdin, a line of JSON each; answers on stdout: a line of JSON, and behind it as many bytes
of Arrow's stream format as that says.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from eo_pipeline._process import hold

VERSION = "1.5.5"
_EXTENSIONS = ("icu", "avro", "delta", "iceberg")


def install(state: Path) -> Path:
    """The folder of that DuckDB and its extensions; fetched (90 MB) the first time.

    Raises:
        subprocess.CalledProcessError: they cannot be had.
    """
    folder = state / f"duckdb-{VERSION}"
    state.mkdir(parents=True, exist_ok=True)
    with hold(state / "duckdb.lock", wait_s=600):
        if not folder.is_dir():
            partial = folder.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
            names = ("duckdb", *(f"duckdb-extension-{each}" for each in _EXTENSIONS))
            wanted = [f"{name}=={VERSION}" for name in names]
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(partial)]
            subprocess.run([*pip, *wanted], check=True)
            partial.rename(folder)
    return folder


class Duck:
    """The process, seen from outside."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(self._folder)},
        )

    def read(self, query: str) -> pa.Table:
        """Raises:
        RuntimeError: what DuckDB said.
        """
        if self._process.poll() is not None:  # what it read last ended it
            self._process = self._started()
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(query).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        answer: dict[str, Any] = (
            json.loads(line) if line else {"error": f"it ended: {self._process.wait(30)}"}
        )
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return pa.ipc.open_stream(self._process.stdout.read(answer["bytes"])).read_all()

    def close(self) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(30)


def _serve() -> None:
    import duckdb

    settings: dict[str, Any] = {"allow_unsigned_extensions": "true", "threads": "1"}
    connection: Any = duckdb.connect(config=settings)
    for name in _EXTENSIONS:
        module = importlib.import_module(f"duckdb_extension_{name}")
        [file] = Path(str(module.__file__)).parent.rglob("*.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    connection.execute("SET TimeZone = 'UTC'")
    for line in sys.stdin:
        held = io.BytesIO()
        try:
            found = connection.execute(json.loads(line)).to_arrow_table()
            with pa.ipc.new_stream(held, found.schema) as stream:
                stream.write_table(found)
            answer: dict[str, Any] = {"bytes": len(held.getvalue())}
        except Exception as error:  # noqa: BLE001 - told to who asked
            answer, held = {"error": f"{type(error).__name__}: {error}"}, io.BytesIO()
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + held.getvalue())
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    _serve()
