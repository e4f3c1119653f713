"""The tasks of examples/airflow, without Airflow: which ends of a run it tries again."""

from __future__ import annotations

import importlib.util
import json
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.engine import Bench

EXAMPLE = Path(__file__).parents[2] / "examples" / "airflow" / "eo_dags.py"

#: A run that did something, as ``eo run --json`` says it.
DONE = '{"checkpoint": {"version": 1}}\n{"run": {"version": 1, "rows": 10}}\n'

UNREACHABLE = """
name: orders
source: {{bootstrap_servers: "127.0.0.1:1", topics: [orders], value_schema: "id BIGINT"}}
sink: {{type: parquet, path: {folder}/orders}}
staging: {folder}/staging
"""


@pytest.fixture
def dags() -> ModuleType:
    spec = importlib.util.spec_from_file_location("eo_dags", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def says(monkeypatch: pytest.MonkeyPatch, code: int, stdout: str, stderr: str = "") -> None:
    """The command ``eo``, of which only this is left."""
    script = (
        f"import sys; sys.stdout.write({stdout!r}); sys.stderr.write({stderr!r}); sys.exit({code})"
    )
    monkeypatch.setenv("EO_COMMAND", shlex.join([sys.executable, "-c", script]))
    monkeypatch.setenv("EO_DOCUMENT", "orders.yaml")


@pytest.mark.parametrize(
    ("code", "again"), [(1, False), (2, False), (3, False), (4, True), (5, False), (143, False)]
)
def test_only_what_may_get_better_is_tried_again(
    dags: ModuleType, monkeypatch: pytest.MonkeyPatch, code: int, again: bool
) -> None:
    error = {"kind": "FencedError", "message": "another run was faster", "retryable": again}
    says(monkeypatch, code, json.dumps({"error": error}))
    expected = dags.TryAgainError if again else dags.AirflowFailException
    with pytest.raises(expected, match="FencedError: another run was faster"):
        dags.run_by_command()


def test_what_the_run_did_goes_into_an_xcom(
    dags: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, 0, DONE)
    assert dags.run_by_command() == {"version": 1, "rows": 10}


def test_a_command_that_died_is_told_by_its_last_words(
    dags: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    says(monkeypatch, 137, "", "starting\nKilled\n")
    with pytest.raises(dags.AirflowFailException, match=r"^Killed$"):
        dags.run_by_command()


@pytest.mark.parametrize("way", ["run_by_command", "run_by_python"])
def test_a_broker_that_is_away_is_waited_for_and_a_document_that_is_not_there_is_not(
    dags: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str
) -> None:
    document = tmp_path / "orders.yaml"
    monkeypatch.setenv("EO_DOCUMENT", str(document))
    monkeypatch.setenv("EO_COMMAND", shlex.join([sys.executable, "-m", "eo_pipeline.cli"]))
    with pytest.raises(dags.AirflowFailException, match="ConfigError"):
        getattr(dags, way)()
    document.write_text(UNREACHABLE.format(folder=tmp_path))
    with pytest.raises(dags.TryAgainError, match="SourceUnavailableError"):
        getattr(dags, way)()


@pytest.mark.slow
def test_both_ways_run_a_pipeline(
    dags: ModuleType, monkeypatch: pytest.MonkeyPatch, bench: Bench, tmp_path: Path
) -> None:
    document = tmp_path / "events.yaml"
    document.write_text(json.dumps(bench.config))  # JSON is YAML
    monkeypatch.setenv("EO_DOCUMENT", str(document))
    monkeypatch.setenv("EO_COMMAND", shlex.join([sys.executable, "-m", "eo_pipeline.cli"]))
    bench.topic.write(30)
    assert dags.run_by_python()["rows"] == 30
    bench.topic.write(10)
    assert dags.run_by_command()["rows"] == 10
    bench.table.assert_holds_once(bench.topic.written)
