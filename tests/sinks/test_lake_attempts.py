"""What attempts to publish to a lake leave, and what finding that costs, in folders listed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import FencedError, RefusedError, SinkUnavailableError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.sinks.lake.ledger import LedgerFiles, Pointer
from eo_pipeline.sinks.registry import sink_from_config
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import CrashRequested, child_of, first_entry, raise_at
from tests.sinks.maintaining import maintain


@pytest.fixture(params=["delta", "iceberg"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> Sink:
    where = {
        "delta": {"path": str(tmp_path / "table")},
        "iceberg": {"table": "ops.flights", "warehouse": str(tmp_path / "lake")},
    }
    return sink_from_config({"type": request.param, **where[request.param]})


def rows_of(version: int) -> StagedOutput:
    numbers = pa.array([version] * 3, pa.int64())
    return StagedOutput(
        rows=StagedTable.in_memory(pa.table({CHECKPOINT_COLUMN: numbers, "id": numbers}))
    )


def publish(sink: Sink, entry: LedgerEntry, reach: Reach = keep_going) -> LedgerEntry:
    with sink.open("p") as session:
        staged = rows_of(entry.version) if entry.version else StagedOutput()
        session.publish(entry, staged, reach)
    return entry


def forward(sink: Sink, checkpoints: int) -> LedgerEntry:
    head = publish(sink, first_entry("p"))
    for _ in range(checkpoints):
        head = publish(sink, child_of(head, 3))
    return head


def files_in(tmp_path: Path, pattern: str) -> list[str]:
    return sorted(path.name for path in tmp_path.rglob(pattern) if path.is_file())


@pytest.mark.parametrize("checkpoints", [2, 12])
def test_a_look_lists_no_folder_that_grows_with_the_ledger(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, checkpoints: int
) -> None:
    head = forward(sink, checkpoints)
    listed: list[str] = []
    for name in ("listdir", "scandir"):
        real = getattr(os, name)

        def counted(folder: Any = ".", real: Any = real) -> Any:
            listed.append(Path(folder).name)
            return real(folder)

        monkeypatch.setattr(os, name, counted)
    with sink.open("p") as session:
        found = session.recover()
    assert found is not None
    assert found.id == head.id
    assert listed == ["attempts"]


def test_attempts_that_are_over_are_told_of_nowhere(sink: Sink, tmp_path: Path) -> None:
    """Those that landed, were refused, and came too late."""
    head = forward(sink, 3)
    strange = pa.table({CHECKPOINT_COLUMN: pa.array(["x"] * 3), "id": pa.array([1, 2, 3])})
    refused = StagedOutput(rows=StagedTable.in_memory(strange))
    with pytest.raises(RefusedError), sink.open("p") as session:
        session.publish(child_of(head, 3), refused)
    assert files_in(tmp_path, "attempts/*") == []
    mine, rival = child_of(head, 3), child_of(head, 3)

    def rival_first(point: CrashPoint) -> None:
        if point is CrashPoint.ENTRY_SENT:
            publish(sink, rival)

    with pytest.raises(FencedError):
        publish(sink, mine, rival_first)
    assert files_in(tmp_path, "attempts/*") == []
    assert len(files_in(tmp_path, "_eo_ledger/p/0*/*")) == 5


@pytest.mark.parametrize("point", [CrashPoint.ROWS_SENT, CrashPoint.ENTRY_SENT])
def test_what_a_killed_attempt_left_goes_once_its_version_is_taken(
    sink: Sink, tmp_path: Path, point: CrashPoint
) -> None:
    head = forward(sink, 3)
    before = files_in(tmp_path, "eo_rows/**/*.parquet")
    with pytest.raises(CrashRequested):
        publish(sink, child_of(head, 3), raise_at(point))
    with sink.open("p") as session:
        session.recover()
    assert len(files_in(tmp_path, "attempts/*")) == 1, "it may be a live run's"
    publish(sink, child_of(head, 3))
    with sink.open("p") as session:
        session.recover()
    assert files_in(tmp_path, "attempts/*") == []
    assert len(files_in(tmp_path, "_eo_ledger/p/0*/*")) == 5
    assert len(files_in(tmp_path, "eo_rows/**/*.parquet")) == len(before) + 1


def test_an_attempt_that_landed_and_was_killed_right_then_keeps_its_files(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = forward(sink, 3)
    entry = child_of(head, 3)
    with monkeypatch.context() as killed:
        killed.setattr(LedgerFiles, "end", lambda *_: None)
        publish(sink, entry)
    assert len(files_in(tmp_path, "attempts/*")) == 1
    before = files_in(tmp_path, "**/*")
    with sink.open("p") as session:
        found = session.recover()
    assert found is not None
    assert found.id == entry.id
    assert files_in(tmp_path, "attempts/*") == []
    assert len(files_in(tmp_path, "**/*")) == len(before) - 1


def test_a_disk_that_takes_no_file_leaves_no_attempt_open(
    sink: Sink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = forward(sink, 3)

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(LedgerFiles, "write", full)
    with pytest.raises(SinkUnavailableError, match="no space left"):
        publish(sink, child_of(head, 3))
    assert files_in(tmp_path, "attempts/*") == []


def test_maintenance_removes_what_attempts_left_that_did_not_say_they_began(
    sink: Sink, tmp_path: Path
) -> None:
    """As those of older releases."""
    forward(sink, 3)
    [head] = tmp_path.rglob(f"{3:012d}-*.json")
    decoy = head.with_name(f"{Pointer.new(3).stem}.json")
    decoy.write_bytes(head.read_bytes())
    with sink.open("p") as session:
        session.recover()
    assert decoy.exists()
    maintain(sink, "p")
    assert not decoy.exists()
    assert head.exists()
