"""`eo maintain`, as somebody types it. No Kafka, no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from eo_pipeline.cli.app import app
from tests.sinks.delta.delta_world import World, world

__all__ = ["world"]


def eo(folder: Path, sink: dict[str, str], *options: str, **settings: object) -> tuple[int, str]:
    """Exit code, and stdout and stderr."""
    source = {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"], "value_schema": "id BIGINT"}
    document = {"name": "p", "source": source, "sink": sink, "maintenance": settings}
    (folder / "p.yaml").write_text(yaml.safe_dump(document))
    found = CliRunner().invoke(app, ["maintain", "-f", str(folder / "p.yaml"), *options])
    return found.exit_code, found.stdout + (found.stderr if "--json" not in options else "")


def test_it_says_what_it_would_do_and_what_it_did(world: World, tmp_path: Path) -> None:
    for _ in range(6):
        world.forward()
    sink = {"type": "delta", "path": str(world.root)}
    code, said = eo(tmp_path, sink, "--dry-run", keep="2d")
    assert code == 0
    assert "would put 6 files together" in said
    assert "Nothing was changed" in said
    code, said = eo(tmp_path, sink, "--json", keep="2d")
    work = {each["work"]: each for each in json.loads(said)["work"]}
    assert (work["compact"]["files"], work["compact"]["files_after"]) == (6, 1)
    assert len(world.files()) == 1


@pytest.mark.parametrize(
    ("settings", "field"),
    [({"keep": "2 weeks"}, "maintenance.keep"), ({"keep": "0h"}, "maintenance.keep"),
     ({"target_file_size": "big"}, "maintenance.target_file_size")],
)  # fmt: skip
def test_a_wrong_setting_is_named(tmp_path: Path, settings: dict[str, str], field: str) -> None:
    code, said = eo(tmp_path, {"type": "console"}, **settings)
    assert code == 2
    assert field in said


def test_a_store_that_needs_nothing_of_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # no table of another test lies at the working folder
    code, said = eo(tmp_path, {"type": "console"})
    assert code == 0
    assert "nothing to do" in said
