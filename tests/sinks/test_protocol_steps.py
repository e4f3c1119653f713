"""The commit protocol against a store in memory: what each step's failure means, and who landed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from eo_pipeline.errors import (
    CommitUnknownError,
    FencedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.sinks.session import CommitOutcome, Publication, SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry

START = first_entry("p")
ROWS = StagedOutput(StagedTable.in_memory(pa.table({"id": [1, 2, 3]})))


class Memory(SinkSession):
    """``meanwhile`` happens in the step of that name, and may raise."""

    def __init__(self, *entries: LedgerEntry) -> None:
        super().__init__("p")
        self.entries = list(entries)
        self.steps: list[str] = []
        self.meanwhile: dict[str, Callable[[], None]] = {}

    def head(self) -> LedgerEntry | None:
        return self.entries[-1] if self.entries else None

    def entry(self, version: int) -> LedgerEntry | None:
        return self.entries[version] if version < len(self.entries) else None

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return iter(self.entries[since:])

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        return Try(self, entry, staged)

    def step(self, name: str) -> None:
        self.steps.append(name)
        self.meanwhile.get(name, lambda: None)()

    def close(self) -> None: ...


class Try(Publication):
    session: Memory

    def write(self) -> None:
        self.session.step("write")

    def enter(self) -> None:
        self.session.step("enter")

    def commit(self) -> None:
        self.session.step("before commit")
        self.session.entries.append(self.entry)
        self.session.step("after commit")


def broken() -> None:
    raise OSError("the link is broken")


def test_rows_and_entry_go_in_by_the_steps_in_their_order_and_only_once() -> None:
    store, entry = Memory(START), child_of(START, 3)
    assert store.publish(entry, ROWS) is CommitOutcome.COMMITTED
    assert store.steps == ["write", "enter", "before commit", "after commit"]
    assert store.publish(entry, ROWS) is CommitOutcome.ALREADY_COMMITTED
    assert (len(store.steps), store.entries) == (4, [START, entry])


@pytest.mark.parametrize(
    ("step", "error", "landed"),
    [
        ("write", RefusedError, False),
        ("enter", RefusedError, False),
        ("before commit", CommitUnknownError, False),
        ("after commit", CommitUnknownError, True),
    ],
)
def test_what_failed_before_the_commit_left_nothing_and_of_the_commit_itself_nobody_knows(
    step: str, error: type[Exception], landed: bool
) -> None:
    store, entry = Memory(START), child_of(START, 3)
    store.meanwhile[step] = broken
    with pytest.raises(error, match="the link is broken"):
        store.publish(entry, ROWS)
    store.meanwhile.clear()
    again = store.publish(entry, ROWS)
    assert again is (CommitOutcome.ALREADY_COMMITTED if landed else CommitOutcome.COMMITTED)
    assert store.entries == [START, entry]


def test_after_a_failure_the_ledger_tells_whether_somebody_else_committed_this_very_entry() -> None:
    entry, other = child_of(START, 3), child_of(START, 3)

    def lands(landed: LedgerEntry) -> Memory:
        store = Memory(START)

        def meanwhile() -> None:
            store.entries.append(landed)
            raise SinkUnavailableError("a rival holds the lock")

        store.meanwhile["enter"] = meanwhile
        return store

    assert lands(entry).publish(entry, ROWS) is CommitOutcome.ALREADY_COMMITTED
    with pytest.raises(FencedError) as fenced:
        lands(other).publish(entry, ROWS)
    assert fenced.value.winner == other.transaction_id


def test_an_entry_is_known_by_its_transaction_and_its_parent_by_that_too() -> None:
    taken = Memory(START, child_of(START, 3))
    with pytest.raises(FencedError):
        taken.publish(child_of(START, 3), ROWS)
    # also on top of an entry of an earlier release, which has no hash
    child = child_of(START, 3)
    unsealed = replace(child, identity=replace(child.identity, parent=None))
    elsewhere = replace(unsealed, parent=EntryId(0, "0" * 32))
    store = Memory(START)
    with pytest.raises(FencedError):
        store.publish(elsewhere, ROWS)
    assert store.publish(unsealed, ROWS) is CommitOutcome.COMMITTED
    assert (taken.steps, store.steps[0]) == ([], "write")


@pytest.mark.parametrize("rows", [0, 2, 4])
def test_no_other_number_of_rows_is_published_than_the_entry_says(rows: int) -> None:
    store, entry = Memory(START), child_of(START, 3)
    with pytest.raises(RefusedError, match=f"3 rows and 0 dead letters .* says {rows} and 0"):
        store.publish(entry.with_counts(replace(entry.counts, rows=rows)), ROWS)
    assert (store.steps, store.entries) == ([], [START])
