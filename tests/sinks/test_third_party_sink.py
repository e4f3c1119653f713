"""The example of docs/writing-a-sink.md, as an installed package: found by name, true to its word.

Nothing is installed: a folder with the metadata that an installation would leave makes the entry
point visible, as ``importlib.metadata`` reads it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from eo_pipeline.errors import ConfigError
from eo_pipeline.sinks.registry import GROUP, sink_from_config, sink_names

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "sqlite_sink"


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the example's metadata, and both on ``sys.path``."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = tmp_path / "site" / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(parents=True)
    named = f"Name: {project['name']}\nVersion: {project['version']}\n"
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{named}")
    points = [f"{name} = {value}\n" for name, value in project["entry-points"][GROUP].items()]
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{''.join(points)}")
    monkeypatch.syspath_prepend(str(EXAMPLE))
    monkeypatch.syspath_prepend(str(info.parent))
    monkeypatch.delitem(sys.modules, "sqlite_sink", raising=False)
    return info.parent


def test_without_the_package_there_is_no_such_sink() -> None:
    with pytest.raises(ConfigError, match="no sink 'sqlite'"):
        sink_from_config({"type": "sqlite"})


@pytest.mark.usefixtures("installed")
def test_its_name_means_its_class(tmp_path: Path) -> None:
    assert "sqlite" in sink_names()
    sink = sink_from_config({"type": "sqlite", "path": str(tmp_path / "eo.db"), "table": "t"})
    assert type(sink).__name__ == "SqliteSink"
    with sink.open("p") as session:
        assert session.recover() is None


@pytest.mark.usefixtures("installed")
def test_its_wrong_fields_are_named() -> None:
    with pytest.raises(ConfigError, match=r"sink\.table: Field required"):
        sink_from_config({"type": "sqlite", "path": "x", "colour": 1})


@pytest.mark.slow
def test_it_keeps_the_contract(installed: Path, tmp_path: Path) -> None:
    """Its own tests, as its author runs them: in a process that knows nothing of ours."""
    path = os.pathsep.join([str(installed), str(EXAMPLE), str(ROOT)])
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            f"--rootdir={EXAMPLE}",
            f"--basetemp={tmp_path / 'tests'}",
            str(EXAMPLE / "tests"),
        ],
        cwd=EXAMPLE,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout


def test_it_is_as_short_as_the_page_says() -> None:
    assert len((EXAMPLE / "sqlite_sink.py").read_text().splitlines()) <= 225
