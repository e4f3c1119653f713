"""Who is told of runs: nobody, unless the names that the tools themselves give ask for it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from eo_pipeline.observers import detection, makers
from eo_pipeline.observers.failures import FailureNotes


@pytest.fixture(autouse=True)
def _nobody_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [each for each in os.environ if each.startswith(("OTEL_", "OPENLINEAGE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    # other tests' receivers
    for name in [each for each in sys.modules if each.startswith("opentelemetry.sdk")]:
        monkeypatch.delitem(sys.modules, name)


def test_nobody_is_told_but_who_counts_failures() -> None:
    assert makers() == [FailureNotes]


@pytest.mark.parametrize(
    "name",
    ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_TRACES_EXPORTER"],
)
def test_opentelemetrys_variables_ask_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert detection.for_opentelemetry()
    assert len(makers()) == 2
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert not detection.for_opentelemetry()


@pytest.mark.parametrize("name", ["OPENLINEAGE_URL", "OPENLINEAGE__TRANSPORT__TYPE"])
def test_openlineages_variables_ask_for_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "x")
    assert detection.for_openlineage()
    monkeypatch.setenv("OPENLINEAGE_DISABLED", "true")
    assert not detection.for_openlineage()


@pytest.mark.parametrize("folder", [".", "home/.openlineage"])
def test_openlineages_file_asks_for_it(folder: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    (tmp_path / folder / "openlineage.yml").touch()
    assert detection.for_openlineage()


def test_a_working_directory_that_is_gone_stops_nobody(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        assert makers() == [FailureNotes]
    finally:
        os.chdir(tmp_path)
