"""The merge of ledger and event log, against every order in which events can have been written."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from eo_pipeline.dagster.mirror import Progress, compare
from eo_pipeline.ledger.entry import EntryId, LedgerEntry, Operation


def ledger(length: int) -> list[LedgerEntry]:
    """Entries 0 to ``length``, each the child of the one before."""
    entries: list[LedgerEntry] = []
    for version in range(length):
        parent = entries[-1].id if entries else None
        operation = Operation.FORWARD if entries else Operation.START
        entries.append(LedgerEntry("p", "l", version, f"t{version}", parent, operation, {}))
    return entries


def settle(
    entries: Sequence[LedgerEntry], log: list[EntryId], a_tick: int
) -> tuple[list[EntryId], Progress]:
    """Tick until nothing changes any more; what the reconciler writes joins the log."""
    progress, repaired = Progress(), list[EntryId]()
    for _ in range(1_000):
        first = progress.entry.version + 1 if progress.entry else 0
        page = log[progress.event : progress.event + a_tick]
        event = progress.event + len(page)
        stretch = entries[first : first + a_tick]
        before = progress
        missing, progress = compare(progress, stretch, page, event, event == len(log))
        progress = Progress.from_cursor(progress.to_cursor())
        log.extend(entry.id for entry in missing)
        repaired.extend(entry.id for entry in missing)
        if progress == before:
            return repaired, progress
    raise AssertionError("the reconciler never came to rest")


@given(st.data())
def test_what_is_missing_is_reported_once_and_nothing_else(data: st.DataObject) -> None:
    entries = ledger(data.draw(st.integers(0, 30)))
    ids = [entry.id for entry in entries]
    known = data.draw(
        st.permutations(data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else [])
    )
    repaired, progress = settle(entries, list(known), a_tick=data.draw(st.integers(1, 7)))
    assert repaired == [each for each in ids if each not in known]
    assert progress.entry == (ids[-1] if ids else None)
    assert progress.ahead == frozenset()


def test_an_event_of_a_replaced_ledger_does_not_count_for_the_version_it_names() -> None:
    entries = ledger(3)
    repaired, _ = settle(entries, [entries[0].id, EntryId(1, "restored away")], a_tick=10)
    assert repaired == [entries[1].id, entries[2].id]


def test_events_not_read_yet_are_waited_for() -> None:
    missing, after = compare(Progress(), ledger(2), [], event=5, caught_up=False)
    assert missing == []
    assert after == Progress(event=5)
