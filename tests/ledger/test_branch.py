"""Which checkpoints stand after rewinds and replays, against a table kept row by row."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation
from eo_pipeline.ledger.history import (
    checkpoints,
    contiguity_errors,
    live_branch,
    records_per_second,
    spans,
)
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.testing.staging import first_entry

TP = TopicPartition("t", 0)


def forward(head: LedgerEntry, records: int = 10) -> LedgerEntry:
    start = head.offsets[TP]
    return replace(
        head.child(Operation.FORWARD, "run", {TP: start + records}),
        ranges=(OffsetRange("t", 0, start, start + records),),
        counts=Counts(records=records, rows=records),
    )


def rewind(head: LedgerEntry, to: LedgerEntry) -> LedgerEntry:
    return replace(head.child(Operation.REWIND, "run", to.offsets), target=to.version)


def replay(head: LedgerEntry, of: LedgerEntry, rows: int) -> LedgerEntry:
    child = head.child(Operation.REPLAY, "run", head.offsets)
    counts = Counts(records=of.counts.records, rows=rows)
    return replace(child, target=of.version, ranges=of.ranges, counts=counts)


def start() -> LedgerEntry:
    return replace(first_entry("p"), offsets={TP: 0})


def versions(entries: list[LedgerEntry]) -> list[int]:
    return [entry.version for entry in live_branch(entries)]


def test_what_a_rewind_left_behind_is_dead_and_the_rewind_itself_stands() -> None:
    ledger = [start()]
    for _ in range(3):
        ledger.append(forward(ledger[-1]))
    ledger.append(rewind(ledger[-1], ledger[1]))
    assert versions(ledger) == [0, 1, 4]
    ledger.append(forward(ledger[-1]))
    ledger.append(rewind(ledger[-1], ledger[4]))
    assert versions(ledger) == [0, 1, 4, 6]
    assert [each.version for each in checkpoints(ledger)] == [1]


def test_a_replay_rewrites_a_checkpoint_and_outlives_a_rewind_that_spares_it() -> None:
    ledger = [start()]
    for _ in range(3):
        ledger.append(forward(ledger[-1]))
    ledger.append(replay(ledger[-1], ledger[1], rows=7))
    ledger.append(rewind(ledger[-1], ledger[2]))
    assert [(each.version, each.counts.rows) for each in checkpoints(ledger)] == [(1, 7), (2, 10)]
    assert spans(checkpoints(ledger)) == (OffsetRange("t", 0, 0, 20),)


def test_a_stretch_that_does_not_begin_at_the_start_is_enough() -> None:
    ledger = [start()]
    for _ in range(4):
        ledger.append(forward(ledger[-1]))
    ledger.append(rewind(ledger[-1], ledger[2]))
    assert versions(ledger[3:]) == [5]
    assert versions(ledger[2:]) == [2, 5]


def test_speed_is_told_from_what_was_timed_only() -> None:
    now = datetime.now(UTC)
    entry = replace(forward(start(), 50), started_at=now, committed_at=now + timedelta(seconds=5))
    assert records_per_second(checkpoints([entry])) == 10
    assert records_per_second(checkpoints([replace(entry, committed_at=None)])) is None
    assert records_per_second(()) is None


@given(st.lists(st.tuples(st.sampled_from(["forward", "rewind", "replay"]), st.integers(0, 99))))
def test_whatever_happened_the_checkpoints_are_those_whose_rows_are_in_the_table(
    steps: list[tuple[str, int]],
) -> None:
    ledger = [start()]
    table: dict[int, int] = {}  # checkpoint -> the version that wrote its rows
    for step, choice in steps:
        head, live = ledger[-1], live_branch(ledger)
        if step == "forward":
            ledger.append(forward(head))
            table[head.version + 1] = head.version + 1
        elif step == "rewind":
            target = live[choice % len(live)]
            ledger.append(rewind(head, target))
            table = {c: by for c, by in table.items() if c <= target.version}
        elif table:
            target = ledger[sorted(table)[choice % len(table)]]
            ledger.append(replay(head, target, rows=choice))
            table[target.version] = head.version + 1
    assert {each.version: each.written.version for each in checkpoints(ledger)} == table
    assert contiguity_errors(ledger) == []
    read = sorted(r for each in checkpoints(ledger) for r in each.entry.ranges)
    # what stands was read from the start without a gap, up to where the ledger stands
    assert [r.start for r in read] == [0, *(r.end for r in read[:-1])] if read else True
    assert (read[-1].end if read else 0) == ledger[-1].offsets[TP]
