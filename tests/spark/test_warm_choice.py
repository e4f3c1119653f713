"""Whether a run uses a warm Spark is told from its record, before anybody connects."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.udf import UserDefinedFunction

from eo_pipeline import SparkSettings
from eo_pipeline.spark import driver
from eo_pipeline.spark.server.record import (
    ServerRecord,
    path_of,
    records,
    terms,
    warm_server,
    write,
)
from tests.spark.test_warm_records import record_of_this_process

_LAUNCH = {"spark.driver.memory": "1g"}


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that tells of a server of the working directory, which fits."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    records().mkdir(parents=True)
    write(record_of_this_process(tmp_path, terms=terms("local[*]", _LAUNCH)))
    return path_of(tmp_path)


@pytest.fixture
def found(caplog: pytest.LogCaptureFixture) -> Callable[[], tuple[ServerRecord | None, str]]:
    """The server a run would use, and what it says about it."""

    def look() -> tuple[ServerRecord | None, str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            return warm_server("local[*]", _LAUNCH), caplog.text

    return look


def test_a_server_that_fits_is_used_and_nothing_is_said(record: Path, found: Any) -> None:
    server, said = found()
    assert server is not None
    assert said == ""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"terms": {"version of pyspark": "3.5.1"}}, "version of pyspark"),
        ({"format": 99}, "another version of eo-pipeline"),
        ({"pid": 1}, "has ended without being asked to"),
        ({"started": "before the reboot"}, "has ended without being asked to"),
    ],
)
def test_a_record_that_lies_is_told_and_done_without(
    record: Path, found: Any, changes: dict[str, Any], said: str
) -> None:
    record.write_text(json.dumps(json.loads(record.read_text()) | changes))
    assert found()[0] is None
    assert said in found()[1]


def test_a_record_that_is_none_is_told_and_done_without(record: Path, found: Any) -> None:
    record.write_text("{")
    server, said = found()
    assert server is None
    assert "is not a record" in said


def test_another_environment_is_named_and_not_shown(
    record: Path, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    server, said = found()
    assert server is None
    assert "time zone" in said
    assert "Tokyo" not in said


def test_a_function_that_was_made_for_another_kind_of_spark_is_told(
    record: Path, found: Any
) -> None:
    made = UserDefinedFunction(str.upper)  # as `udf` at the top of a transform's module does
    server, said = found()
    assert server is None
    assert "make it in the transform" in said
    del made
    assert found()[0] is not None


def test_a_document_that_wants_none_does_not_look(
    record: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: whoever looked would connect to a port where nobody is, and say so."""
    monkeypatch.setattr(driver, "has_driver", lambda: False)
    monkeypatch.setattr(
        "eo_pipeline.spark.session.warm_server", lambda *_: pytest.fail("it looked")
    )
    assert SparkSettings(warm=False)._warm_session() is None
