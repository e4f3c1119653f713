"""What stays of attempts: of a dead one nothing, of a committed one its rows, of a live one all."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.runs.recovery import Recovery
from eo_pipeline.staging import attempt as attempt_module
from eo_pipeline.staging import markers as owner_module
from eo_pipeline.staging.attempt import Attempt, StagingArea
from eo_pipeline.staging.manifest import Manifest
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage.paths import relative_name
from eo_pipeline.testing import child_of, first_entry, to_files
from tests.runs.test_recovery import Ledger

START = first_entry("p")
ROWS = StagedTable.in_memory(pa.table({"id": [1, 2, 3]}))


@pytest.fixture
def table(tmp_path: Path) -> Path:
    return tmp_path / "table" / "eo_rows"


@pytest.fixture
def area(tmp_path: Path, table: Path) -> StagingArea:
    """Promises in one folder, rows in another, as lakes have them."""
    return StagingArea(tmp_path / "staging", "p", table)


def staged(attempt: Attempt) -> StagedOutput:
    """Rows and dead letters, and what Spark leaves beside them."""
    rows = to_files(ROWS, attempt.rows_folder())
    for name in ("_SUCCESS", ".part-0.parquet.crc", "part-9-empty.parquet"):
        (attempt.rows_folder() / name).write_bytes(b"x")
    attempt.dead_letters_folder().mkdir()
    (attempt.dead_letters_folder() / "part-0.parquet").write_bytes(b"letters")
    files = tuple(f.__class__(f"rows/{f.path}", f.size, f.rows) for f in rows.files)
    return StagedOutput(rows=StagedTable(rows.schema, root=attempt.data, files=files))


def recover(area: StagingArea, *entries: LedgerEntry, copies_rows: bool = False) -> None:
    Recovery("p", Ledger(*entries), area, copies_rows).recover()


def everything(folder: Path) -> list[str]:
    found = (path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return sorted(str(path) for path in found if "_witness" not in path.parts)


def test_of_a_committed_attempt_the_rows_stay_and_nothing_else(
    area: StagingArea, tmp_path: Path, table: Path
) -> None:
    entry = child_of(START, 3)
    attempt = area.begin(entry)
    output = staged(attempt)
    attempt.write_manifest(Manifest(entry, output))
    recover(area, START, entry)
    assert output.rows is not None
    assert everything(table.parent) == sorted(
        relative_name(path, table.parent) for path in output.rows.paths()
    )
    assert everything(tmp_path / "staging") == []


def test_what_a_job_writes_after_its_attempt_was_removed_goes_with_the_next_run(
    area: StagingArea, table: Path, tmp_path: Path
) -> None:
    """A killed client's Spark job may go on writing on its server."""
    lost, winner = child_of(START), child_of(START)
    attempt = area.begin(lost)
    staged(attempt)
    recover(area, START, winner)
    assert everything(table) == []
    staged(attempt)  # the job goes on
    recover(area, START, winner)
    assert everything(table) == []
    head = winner
    chain = [START, winner]
    for _ in range(100):
        head = child_of(head)
        chain.append(head)
    recover(area, *chain)
    assert everything(tmp_path / "staging") == []


def test_a_kill_between_two_removals_leaves_what_the_next_one_finds(
    area: StagingArea, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost, winner = child_of(START), child_of(START)
    attempt = area.begin(lost)
    attempt.write_manifest(Manifest(lost, staged(attempt)))
    with monkeypatch.context() as killed:
        killed.setattr(attempt_module, "remove_tree", interrupted)
        with pytest.raises(KeyboardInterrupt):
            recover(area, START, winner)
    assert everything(table)
    assert attempt.manifest() is None, "what is half-removed promises nothing"
    recover(area, START, winner)
    assert everything(table) == []
    assert not attempt.folder.exists()


def interrupted(_: Path) -> None:
    raise KeyboardInterrupt


#: Begins an attempt in a process of its own, and is killed, or waits.
OWNER = """
import json, sys, time
from pathlib import Path
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.staging.attempt import StagingArea
entry = LedgerEntry.from_json(json.loads(sys.argv[2]))
attempt = StagingArea(Path(sys.argv[1]), "p").begin(entry)
(attempt.folder / "rows").mkdir()
(attempt.folder / "rows" / "part-0.parquet").write_bytes(b"x" * 1000)
print("staged", flush=True)
time.sleep(600)
"""


def test_a_crash_loop_leaves_no_folder_a_crash_and_a_living_owner_keeps_his(
    tmp_path: Path,
) -> None:
    area, staging = StagingArea(tmp_path, "p"), tmp_path / "p" / START.ledger_id
    for _ in range(3):
        text = json.dumps(child_of(START).to_json())
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER, str(tmp_path), text], stdout=subprocess.PIPE, text=True
        )
        assert owner.stdout is not None
        assert owner.stdout.readline() == "staged\n"
        recover(area, START, copies_rows=True)
        assert len(everything(staging)) == 2, "a living owner's folder was touched"
        owner.send_signal(signal.SIGKILL)
        owner.communicate()
        recover(area, START, copies_rows=True)
        assert everything(staging) == []


def test_a_dead_owners_promise_is_no_abandoned_attempt(area: StagingArea) -> None:
    entry = child_of(START, 3)
    attempt = area.begin(entry)
    attempt.write_manifest(Manifest(entry, staged(attempt)))
    assert attempt.owner is not None
    attempt.owner.close()
    assert not attempt.is_abandoned
    (attempt.folder / "manifest.json").unlink()
    assert attempt.is_abandoned


def test_an_attempt_of_another_kernel_is_left_alone(
    area: StagingArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = area.begin(child_of(START))
    assert attempt.owner is not None
    attempt.owner.close()
    monkeypatch.setattr(owner_module, "_kernel", lambda: "another one")
    recover(area, START)
    assert attempt.folder.exists()


def test_hosts_that_take_turns_keep_one_witness_each(tmp_path: Path) -> None:
    chain = [START]
    hosts = [StagingArea(tmp_path / name, "p") for name in ("a", "b")]
    for turn in range(10):
        area = hosts[turn % 2]
        recover(area, *chain)
        chain.append(child_of(chain[-1]))
        area.witnesses.remember(chain[-1])
    for area in hosts:
        recover(area, *chain)
        assert [each.id for each in area.witnesses.all()][-1] == chain[-1].id
        assert len(area.witnesses.all()) <= 2
