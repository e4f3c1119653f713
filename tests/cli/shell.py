"""The command line `eo` in a folder of its own, with a pipeline under test behind it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from psycopg.conninfo import make_conninfo
from typer.testing import CliRunner

from eo_pipeline.cli.app import app
from tests.support.engine import Bench

SECRET = "hunter2"


@dataclass(frozen=True)
class Ended:
    """A command that ended."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """The one document on stdout."""
        return json.loads(self.out)

    def lines(self) -> list[Any]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass
class Shell:
    """``eo`` in a folder of its own, with a bench behind it. No command may print the password."""

    folder: Path
    bench: Bench

    def __call__(self, *arguments: str) -> Ended:
        found = CliRunner().invoke(app, arguments)
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return self._checked(Ended(found.exit_code, found.stdout, found.stderr))

    def process(self, *arguments: str) -> Ended:
        """The same in a process of its own."""
        command = [sys.executable, "-m", "eo_pipeline.cli", *arguments]
        found = subprocess.run(command, capture_output=True, text=True, timeout=240)
        return self._checked(Ended(found.returncode, found.stdout, found.stderr))

    def document(self, file: str = "pipeline.yaml", /, **changes: Any) -> Path:
        """The bench's pipeline as a document."""
        path = self.folder / file
        config = {**self.bench.config, "sink": self.sink(), **changes}
        path.write_text(yaml.safe_dump(config, sort_keys=False))
        return path

    def sink(self) -> dict[str, Any]:
        return {**self.bench.config["sink"], "dsn": "${EO_TEST_DSN}"}

    def versions(self) -> list[int]:
        return self.bench.table.versions()

    def _checked(self, ended: Ended) -> Ended:
        assert SECRET not in ended.out + ended.err
        assert "Traceback" not in ended.err
        return ended


@pytest.fixture
def eo(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delenv("EO_PIPELINES", raising=False)
    # the server trusts this machine and looks at no password
    monkeypatch.setenv("EO_TEST_DSN", make_conninfo(bench.table.dsn, password=SECRET))
    repository = str(Path(__file__).parents[2])
    monkeypatch.setenv("PYTHONPATH", repository)
    return Shell(tmp_path, bench)
