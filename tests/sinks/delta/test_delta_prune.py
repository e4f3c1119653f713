"""Below the floor of a lake's ledger: its files, dead letters whose entries are gone, and kills."""

from __future__ import annotations

from pathlib import Path

import pytest

from eo_pipeline import crashpoints
from eo_pipeline.crashpoints import CrashPoint
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.operations.maintain import floor_entry
from eo_pipeline.sinks.delta import DeltaSink
from eo_pipeline.sinks.lake.ledger import LedgerFile, LedgerFiles, Pointer
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, crash_at, dead_letters, first_entry
from eo_pipeline.testing.faults import dies
from tests.sinks.delta.delta_world import rows_of

POINTS = [CrashPoint.PLANNED, CrashPoint.STAGED, CrashPoint.COMMITTED]
FLOOR = 6


@pytest.fixture
def sink(tmp_path: Path) -> DeltaSink:
    return DeltaSink(path=str(tmp_path / "a table"))


def ledger(sink: DeltaSink) -> Path:
    assert isinstance(sink.root, Path)
    return sink.root / "_eo_ledger/p"


def publish(
    session: SinkSession, head: LedgerEntry, letters: int, operation: Operation, target: int | None
) -> LedgerEntry:
    """``letters`` are as many as are told apart by what they say: the version that wrote them."""
    number = head.version + 1 if target is None else target
    values = [f"version {head.version + 1}".encode()] * letters
    rows = None if operation is Operation.REWIND else StagedTable.in_memory(rows_of(number))
    staged = StagedOutput(rows, dead_letters(number, values) if letters else None)
    entry = child_of(head, staged, operation=operation, target=target)
    session.publish(entry, staged)
    return entry


def with_floor(sink: DeltaSink) -> LedgerEntry:
    """Dead letters of versions 1 to 6, of which 2 is replayed with others and 5 and 6 are taken
    back; then of a version above the floor. Files of attempts that lost lie beside them.
    """
    forward, back, again = Operation.FORWARD, Operation.REWIND, Operation.REPLAY
    with sink.open("p") as session:
        head = first_entry("p")
        session.publish(head, StagedOutput())
        steps = [(1, forward, None)] * 3 + [(1, again, 2)] + [(1, forward, None)] * 2
        steps += [(0, back, 3), (2, forward, None), (0, forward, None)]
        for letters, operation, target in steps:
            head = publish(session, head, letters, operation, target)
        for path in list(ledger(sink).rglob("00000000000[35]-*")):
            lost = path.with_name(path.name.replace("-", "-7"))
            lost.write_bytes(path.read_bytes())
        entry = floor_entry(head, FLOOR, session.entry, "a test")
        session.publish(entry, StagedOutput())
    return entry


def letters_of(sink: DeltaSink) -> list[str]:
    """By a session of its own, as a person sees them."""
    with sink.open("p") as session:
        found = [row for batch in session.dead_letter_values(0) for row in batch.to_pylist()]
    return sorted(row["value"].decode() for row in found)


def ledger_of(sink: DeltaSink) -> list[int]:
    """The versions of the ledger's files."""
    found = ledger(sink).glob("0*/*.json")
    return sorted(int(path.name.partition("-")[0]) for path in found)


def pruned(sink: DeltaSink) -> int:
    with sink.open("p") as session:
        return session.prune(dry_run=False)


def killed_at(sink: DeltaSink, point: CrashPoint) -> None:
    """To be called in a process that ``dies``."""
    with crashpoints.reaching(crash_at(point)):
        pruned(sink)


STANDING = ["version 1", "version 3", "version 4", "version 8", "version 8"]


def test_dead_letters_stay_as_they_stood_when_their_entries_go(sink: DeltaSink) -> None:
    head = with_floor(sink)
    assert letters_of(sink) == STANDING
    assert pruned(sink) == FLOOR - 1 + 2
    assert letters_of(sink) == STANDING
    assert ledger_of(sink) == [0, *range(FLOOR, head.version + 1)]
    assert pruned(sink) == 0
    with sink.open("p") as session:
        assert session.recover() == session.head()
    assert letters_of(sink) == STANDING


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_moment_everything_is_as_it_was_and_the_next_one_ends_it(
    sink: DeltaSink, point: CrashPoint
) -> None:
    head = with_floor(sink)
    dies(killed_at, sink, point)
    assert letters_of(sink) == STANDING
    if point is not CrashPoint.PLANNED:
        # a run that slept since the floor was set takes a version's only file for the one that won
        assert len(ledger_of(sink)) == len(set(ledger_of(sink)))
    with sink.open("p") as session:
        head = publish(session, head, 1, Operation.FORWARD, None)
        assert session.recover() == session.head()
    pruned(sink)
    assert ledger_of(sink) == [0, *range(FLOOR, head.version + 1)]
    assert letters_of(sink) == sorted([*STANDING, f"version {head.version}"])


def test_a_second_floor_keeps_what_stood_below_the_first(sink: DeltaSink) -> None:
    head = with_floor(sink)
    pruned(sink)
    with sink.open("p") as session:
        head = publish(session, head, 1, Operation.FORWARD, None)
        head = publish(session, head, 0, Operation.REWIND, head.version - 1)
        entry = floor_entry(head, head.version, session.entry, "a test")
        session.publish(entry, StagedOutput())
    assert letters_of(sink) == STANDING
    dies(killed_at, sink, CrashPoint.COMMITTED)
    assert letters_of(sink) == STANDING
    pruned(sink)
    assert ledger_of(sink) == [0, head.version, entry.version]
    assert letters_of(sink) == STANDING


def test_only_entries_that_go_are_read_and_few_to_find_the_floor(
    sink: DeltaSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those above the floor, of which there are as many as the ledger is kept long."""
    head = with_floor(sink)
    with sink.open("p") as session:
        for _ in range(40):
            head = publish(session, head, 0, Operation.FORWARD, None)
    read: list[int] = []
    reading = LedgerFiles._read

    def counted(files: LedgerFiles, pointer: Pointer) -> LedgerFile:
        read.append(pointer.version)
        return reading(files, pointer)

    monkeypatch.setattr(LedgerFiles, "_read", counted)
    pruned(sink)
    assert {version for version in read if version < FLOOR} == set(range(FLOOR))
    assert len([version for version in read if version >= FLOOR]) <= 12
    assert letters_of(sink) == STANDING


def test_rows_in_files_named_by_version_stay_when_their_entries_go(sink: DeltaSink) -> None:
    """Small batches lie in such files: they are the table."""
    head = with_floor(sink)
    pruned(sink)
    with sink.open("p") as session:
        session.recover()
        rows = sum(batch.num_rows for batch in session.lineage())
    assert rows == 5 * 3
    assert head.floor == FLOOR
