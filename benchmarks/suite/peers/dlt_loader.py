"""dlt, in an environment of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from benchmarks.suite.errors import PeerMissingError
from benchmarks.suite.peers.peer import ProgramPeer
from benchmarks.suite.room import PROGRAMS
from benchmarks.suite.stores import Store
from benchmarks.suite.target import Target
from benchmarks.suite.topic import Topic
from benchmarks.suite.workloads.workload import Workload

CONSTRAINTS = PROGRAMS / "dlt-constraints.txt"


class Dlt(ProgramPeer):
    """A resource that consumes the topic and yields Arrow tables."""

    PROGRAM: ClassVar[str] = "dlt"
    PROMISE: ClassVar[str] = (
        "`append`: at least once (killed between commit and its own note, it loads the package "
        "again). `merge` by key: exactly once, and slower."
    )
    SETTINGS: ClassVar[str] = (
        "confluent-kafka and pyarrow's JSON reader, Arrow tables of up to 50,000 records; "
        "`loader_file_format=csv` (COPY); `append`."
    )

    @classmethod
    def takes(cls, workload: Workload, store: Store) -> bool:
        return super().takes(workload, store) and workload.by_dlt

    def install(self) -> None:
        if self._python.exists() and (self._folder / ".ready").exists():
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        wanted = ["dlt[postgres]", "pyarrow", "confluent-kafka"]
        pip = ["-m", "pip", "install", "--quiet", "--constraint", str(CONSTRAINTS), *wanted]
        for command in (
            [sys.executable, "-m", "venv", str(self._folder)],
            [str(self._python), *pip],
        ):
            self._do(command)
        (self._folder / ".ready").touch()

    def versions(self) -> Mapping[str, str]:
        pins = (line.split("==") for line in CONSTRAINTS.read_text().splitlines() if "==" in line)
        return {name: version for name, version in pins if name == "dlt"}

    @property
    def _folder(self) -> Path:
        return self.room.folder / "dlt"

    @property
    def _python(self) -> Path:
        return self._folder / "bin" / "python"

    def _do(self, command: Sequence[str]) -> None:
        try:
            run = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=self.room.limit_to_install,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise PeerMissingError("it took too long to install") from error
        if run.returncode != 0:
            raise PeerMissingError(f"it could not be installed: {run.stderr[-300:]}")

    def command(self) -> Sequence[str]:
        return [str(self._python), str(PROGRAMS / "dlt_load.py")]

    def line(self, topic: Topic, target: Target) -> str:
        return json.dumps(
            {
                "bootstrap": topic.bootstrap,
                "topic": topic.name,
                "dsn": target.dsn,
                "table": target.name,
                "folder": str(target.folder / "dlt"),
            }
        )
