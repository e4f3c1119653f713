"""What is written down of a warm Spark is believed only as far as it can be true."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eo_pipeline._process import start_of
from eo_pipeline.spark.server.record import (
    ServerRecord,
    UnreadableRecordError,
    differences,
    forget,
    nearest,
    path_of,
    read,
    records,
    terms,
    write,
)

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    records().mkdir(parents=True)


def record(folder: Path) -> ServerRecord:
    """Of a server whose process is this one, written."""
    folder.mkdir(parents=True, exist_ok=True)
    made = record_of_this_process(folder)
    write(made)
    return made


def record_of_this_process(folder: Path, **told: Any) -> ServerRecord:
    """As if it were a server of ``folder``'s."""
    started = start_of(os.getpid()) or ""
    made = ServerRecord(
        folder=str(folder.resolve()),
        host="127.0.0.1",
        port=1,
        token="secret",
        gateway_port=2,
        gateway_secret="secret",
        pid=os.getpid(),
        started=started,
        watcher_pid=os.getpid(),
        watcher_started=started,
        since="2026-01-31T12:00:00+00:00",
        idle_timeout_s=1800.0,
        log="log",
        terms={},
        versions={},
    )
    return replace(made, **told)


def test_the_nearest_folder_counts_and_another_project_has_its_own(tmp_path: Path) -> None:
    outer, inner = record(tmp_path / "a"), record(tmp_path / "a" / "b")
    below = tmp_path / "a" / "b" / "c"
    below.mkdir()
    assert nearest(below) == inner
    assert nearest(tmp_path / "a") == outer
    assert nearest(tmp_path) is None
    forget(Path(inner.folder))
    assert nearest(below) == outer


def test_a_pid_that_is_another_process_by_now_is_not_the_server(tmp_path: Path) -> None:
    path = path_of(Path(record(tmp_path / "a").folder))
    assert read(path) is not None
    told = json.loads(path.read_text())
    path.write_text(json.dumps(told | {"started": "before the reboot"}))
    found = read(path)
    assert found is not None
    assert not found.alive
    assert found.watched


def test_a_record_that_others_may_read_or_that_means_something_else_is_none(tmp_path: Path) -> None:
    path = path_of(Path(record(tmp_path / "a").folder))
    assert path.stat().st_mode & 0o777 == 0o600
    told = json.loads(path.read_text())
    for text in ("", "[]", "{}", json.dumps(told | {"format": 0}), json.dumps(told | {"more": 1})):
        path.write_text(text)
        with pytest.raises(UnreadableRecordError):
            read(path)
    path.write_text(json.dumps(told))
    path.chmod(0o644)
    with pytest.raises(UnreadableRecordError, match="this user's alone"):
        read(path)


def test_what_differs_is_named_and_no_setting_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jar = tmp_path / "a.jar"
    jar.touch()
    launch = {"spark.driver.extraClassPath": str(jar), "spark.hadoop.fs.s3a.secret.key": "hunter2"}
    before = terms("local[*]", launch)
    assert "hunter2" not in str(before)
    assert differences(before, terms("local[*]", launch)) == []
    assert differences(before, terms("local[1]", launch)) == ["document's spark settings"]
    jar.write_text("another")
    assert differences(before, terms("local[*]", launch)) == ["connector's jars"]
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--jars x pyspark-shell")
    assert "PYSPARK_SUBMIT_ARGS" in differences(before, terms("local[*]", launch))
