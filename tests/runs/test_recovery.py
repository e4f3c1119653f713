"""Step 1 against a ledger in memory: each rule of run/recover.py, and the window it closes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from eo_pipeline.crashpoints import Reach, keep_going
from eo_pipeline.errors import (
    FencedError,
    LedgerBehindError,
    LedgerDamagedError,
    ManifestDamagedError,
    RefusedError,
)
from eo_pipeline.ledger.entry import EntryId, LedgerEntry, Operation
from eo_pipeline.operations.repair import adopt_head
from eo_pipeline.runs.recovery import Recovery
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.attempt import MANIFEST, Attempt, StagingArea
from eo_pipeline.staging.manifest import Manifest
from eo_pipeline.staging.rows import StagedOutput
from tests.staging.test_staging import START


class Ledger(SinkSession):
    """A ledger in memory. ``meanwhile`` runs once, before the next look at one entry: what other
    runs do between two steps of ours.
    """

    def __init__(self, *entries: LedgerEntry) -> None:
        super().__init__("p")
        self.entries = list(entries)
        self.refuses = False
        self.hidden: int | None = None
        self.meanwhile: Callable[[], None] | None = None

    def head(self) -> LedgerEntry | None:
        return self.entries[-1] if self.entries else None

    def entry(self, version: int) -> LedgerEntry | None:
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        is_shown = version < len(self.entries) and version != self.hidden
        return self.entries[version] if is_shown else None

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return iter(self.entries[since:])

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        if entry.version < len(self.entries) and self.entries[entry.version].id == entry.id:
            return CommitOutcome.ALREADY_COMMITTED
        if not entry.is_child_of(self.head()):
            raise FencedError(entry.pipeline, entry.version, None)
        if self.refuses:
            raise RefusedError("a constraint")
        self.entries.append(entry)
        return CommitOutcome.COMMITTED

    def close(self) -> None: ...


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(tmp_path, "p")


def child(parent: LedgerEntry) -> LedgerEntry:
    return parent.child(Operation.FORWARD, "run", parent.offsets)


def recovery(ledger: Ledger, area: StagingArea, copies_rows: bool = True) -> Recovery:
    return Recovery("p", ledger, area, copies_rows)


def promise(area: StagingArea, entry: LedgerEntry) -> Attempt:
    attempt = area.begin(entry)
    attempt.write_manifest(Manifest(entry, StagedOutput()))
    return attempt


def ids(area: StagingArea) -> list[EntryId]:
    return [attempt.id for attempt in area.attempts(START.ledger_id)]


def test_a_promise_on_top_of_the_head_is_kept(area: StagingArea) -> None:
    ledger, entry = Ledger(START), child(START)
    promise(area, entry)
    head, committed = recovery(ledger, area).recover()
    assert (head, committed) == (entry, [entry])
    assert area.witnesses.entry_ids() == [entry.id]
    assert ids(area) == []


def test_a_promise_that_is_not_a_child_of_the_head_is_neither_kept_nor_deleted(
    area: StagingArea,
) -> None:
    stranger = child(child(START))
    promise(area, stranger)
    head, committed = recovery(Ledger(START), area).recover()
    assert (head, committed) == (START, [])
    assert ids(area) == [stranger.id]


def test_a_child_by_number_of_another_parent_is_not_kept(area: StagingArea) -> None:
    """Scenario: the ledger came back with another version 1. Outcome: a number is no identity."""
    old, new = child(START), child(START)
    promise(area, child(old))
    head, committed = recovery(Ledger(START, new), area).recover()
    assert (head, committed) == (new, [])


def test_of_two_promises_at_one_version_one_is_kept_and_the_other_deleted(
    area: StagingArea,
) -> None:
    for _ in range(2):
        promise(area, child(START))
    _, committed = recovery(Ledger(START), area).recover()
    assert len(committed) == 1
    assert ids(area) == []


def test_a_refused_promise_is_marked_kept_in_place_and_never_met_again(area: StagingArea) -> None:
    ledger = Ledger(START)
    ledger.refuses = True
    attempt = promise(area, child(START))
    assert recovery(ledger, area).recover() == (START, [])
    assert attempt.is_refused
    ledger.refuses = False
    assert recovery(ledger, area).recover() == (START, [])
    assert ids(area) == [attempt.id]


def test_a_folder_without_manifest_is_left_alone_until_its_version_is_taken(
    area: StagingArea,
) -> None:
    taken = child(START)
    alive = area.begin(child(START))
    recovery(Ledger(START), area).recover()
    assert ids(area) == [alive.id]
    recovery(Ledger(START, taken), area).recover()
    assert ids(area) == []


def test_in_a_lake_the_committed_files_stay_and_only_the_promise_goes(tmp_path: Path) -> None:
    area = StagingArea(tmp_path / "manifests", "p", tmp_path / "table")
    kept, lost = child(START), child(START)
    for entry in (kept, lost):
        promise(area, entry).rows_folder().mkdir(parents=True)
    recovery(Ledger(START, kept), area, copies_rows=False).recover()
    assert ids(area) == []
    left = sorted(path.name for path in (tmp_path / "table" / "p").iterdir())
    assert left == [f"{1:012d}-{kept.transaction_id}"]


def test_a_faster_run_is_not_called_a_restored_backup(area: StagingArea) -> None:
    """Scenario: between our look at the head and at the witnesses another run commits and bears
    witness. Outcome: each witness is looked up, not compared with the head we read.
    """
    ledger, faster = Ledger(START), child(START)
    area.witnesses.remember(START)

    def meanwhile() -> None:
        ledger.entries.append(faster)
        area.witnesses.remember(faster)

    ledger.meanwhile = meanwhile
    recovery(ledger, area).recover()
    area.witnesses.remember(faster)
    assert recovery(ledger, area).recover()[0] == faster


def test_whoever_is_fenced_goes_on_from_the_ledgers_new_head(area: StagingArea) -> None:
    ledger, faster, ours = Ledger(START), child(START), child(START)
    promise(area, ours)
    head = ledger.head()
    assert head is not None

    class Late(Ledger):
        """The other run commits between our reading of the head and our publishing."""

        def publish(
            self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
        ) -> CommitOutcome:
            if faster not in self.entries:
                self.entries.append(faster)
            return super().publish(entry, staged, reach)

    found, committed = recovery(Late(START), area).recover()
    assert (found, committed) == (faster, [])


@pytest.mark.parametrize("restored", [(START,), ()], ids=["older", "empty"])
def test_a_ledger_that_lacks_a_confirmed_commit_is_refused_until_adopted(
    area: StagingArea, restored: tuple[LedgerEntry, ...]
) -> None:
    confirmed = child(START)
    area.witnesses.remember(confirmed)
    ledger = Ledger(*restored)
    with pytest.raises(LedgerBehindError, match="version 1"):
        recovery(ledger, area).recover()
    (lost,) = recovery(ledger, area).lost(ledger.head(), area.witnesses.all())
    assert lost.id == confirmed.id
    adopted = adopt_head(recovery(ledger, area), ledger.head(), area.witnesses.all(), "run", {})
    assert (adopted is None) == (restored == ())
    head, _ = recovery(ledger, area).recover()
    assert head == adopted
    assert recovery(ledger, area).lost(ledger.head(), area.witnesses.all()) == []


def test_another_transaction_at_a_confirmed_version_is_a_ledger_that_went_back(
    area: StagingArea,
) -> None:
    """Scenario: restored, then another host went on to the same number."""
    area.witnesses.remember(child(START))
    with pytest.raises(LedgerBehindError):
        recovery(Ledger(START, child(START)), area).recover()


HERE, ELSEWHERE = {"kind": "postgres", "table": "t"}, {"kind": "console"}


def at_place(tmp_path: Path, place: dict[str, str]) -> StagingArea:
    return StagingArea(tmp_path, "p", sink=place)


def test_a_pipeline_of_the_same_name_into_another_store_is_no_older_backup(tmp_path: Path) -> None:
    """Found before: the second was told to adopt, and deleted the first one's promise by it."""
    first, second = at_place(tmp_path, ELSEWHERE), at_place(tmp_path, HERE)
    promised = child(child(START))
    first.witnesses.remember(child(START))
    promise(first, promised)
    assert recovery(Ledger(), second).recover() == (None, [])
    other = replace(START, ledger_id="m", transaction_id="m")
    ledger = Ledger(other, one := child(other), child(one))
    assert recovery(ledger, second).recover()[1] == []
    assert [attempt.id for attempt in first.attempts("l")] == [promised.id]


def test_an_emptied_store_is_noticed_by_what_was_seen_in_that_very_place(tmp_path: Path) -> None:
    at_place(tmp_path, HERE).witnesses.remember(child(START))
    with pytest.raises(LedgerBehindError, match="is empty"):
        recovery(Ledger(), at_place(tmp_path, HERE)).recover()
    begun_anew = replace(START, ledger_id="m")
    with pytest.raises(LedgerBehindError):
        recovery(Ledger(begun_anew), at_place(tmp_path, HERE)).recover()


def test_a_ledger_that_moved_is_compared_with_what_was_seen_of_it_elsewhere(tmp_path: Path) -> None:
    at_place(tmp_path, ELSEWHERE).witnesses.remember(child(START))
    with pytest.raises(LedgerBehindError):
        recovery(Ledger(START), at_place(tmp_path, HERE)).recover()


def test_witnesses_of_an_earlier_release_are_believed_until_they_are_replaced(
    tmp_path: Path,
) -> None:
    area, confirmed = at_place(tmp_path, HERE), child(START)
    earlier = tmp_path / "p" / "_witness" / f"{1:012d}-{confirmed.transaction_id}"
    earlier.parent.mkdir(parents=True)
    earlier.touch()
    with pytest.raises(LedgerBehindError):
        recovery(Ledger(START), area).recover()
    recovery(Ledger(START, confirmed), area).recover()
    assert not earlier.exists()
    assert area.witnesses.entry_ids() == [confirmed.id]


def test_a_head_that_is_not_what_was_seen_committed_is_damaged(area: StagingArea) -> None:
    head = child(START)
    area.witnesses.remember(head)
    changed = replace(head, run_id="another")
    with pytest.raises(LedgerDamagedError, match="version 1 was changed"):
        recovery(Ledger(START, changed), area).recover()


def test_a_promise_that_cannot_be_read_stops_the_run_until_it_is_set_aside(
    area: StagingArea,
) -> None:
    ledger = Ledger(START)
    attempt = promise(area, child(START))
    (attempt.folder / MANIFEST).write_text("")
    with pytest.raises(ManifestDamagedError, match=attempt.folder.name):
        recovery(ledger, area).recover()
    ((found, _),) = recovery(ledger, area).damaged(START)
    found.set_aside()
    assert recovery(ledger, area).recover() == (START, [])
    ledger.entries.append(child(START))
    recovery(ledger, area).recover()
    assert ids(area) == []


def test_a_promise_that_cannot_be_read_and_was_kept_stops_nobody(area: StagingArea) -> None:
    entry = child(START)
    attempt = promise(area, entry)
    (attempt.folder / MANIFEST).write_text("")
    assert recovery(Ledger(START, entry), area).recover() == (entry, [])
    assert ids(area) == []


def test_what_the_ledger_does_not_show_is_not_dead(area: StagingArea) -> None:
    """Scenario: a store that is behind itself does not show an entry below its head. Outcome: the
    attempts at that version stay; perhaps one of them is what was committed.
    """
    first = child(START)
    attempt = promise(area, child(START))
    ledger = Ledger(START, first, child(first))
    ledger.hidden = 1
    recovery(ledger, area).delete_decided_attempts(ledger.entries[-1])
    assert ids(area) == [attempt.id]
    ledger.hidden = None
    recovery(ledger, area).delete_decided_attempts(ledger.entries[-1])
    assert ids(area) == []
