"""What going back aims at, by version and by moment: a ledger in memory, no store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from eo_pipeline.errors import (
    GoingBackError,
    LedgerDamagedError,
    StalePlanError,
    UnknownCheckpointError,
)
from eo_pipeline.ledger.entry import Counts, LedgerEntry, Operation
from eo_pipeline.ledger.history import checkpoints
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.operations.change_plan import (
    find_live_entry,
    first_topic_ids,
    ranges_since,
    refuse_stale,
)
from eo_pipeline.operations.replay import replay_entry
from eo_pipeline.sinks.session import SinkSession

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


class Ledger(SinkSession):
    """One entry a minute from noon on."""

    def __init__(self, *entries: LedgerEntry) -> None:
        super().__init__("p")
        self.entries = [
            replace(entry, committed_at=NOON + timedelta(minutes=number))
            for number, entry in enumerate(entries)
        ]

    def head(self) -> LedgerEntry:
        return self.entries[-1]

    def entry(self, version: int) -> LedgerEntry | None:
        return next((entry for entry in self.entries if entry.version == version), None)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        return (entry for entry in self.entries if entry.version >= since)

    def close(self) -> None: ...

    def find(self, wanted: int | datetime) -> int:
        """The version that is found; those after it must come along."""
        found, later = find_live_entry(self, self.head(), wanted)
        assert [e.version for e in later] == list(range(found.version + 1, len(self.entries)))
        return found.version


def entries(count: int) -> list[LedgerEntry]:
    """A start and ``count`` checkpoints of ten records each."""
    found = [LedgerEntry("p", "l", 0, "t0", None, Operation.START, {A: 0}, topic_ids={"t": "u"})]
    for number in range(count):
        child = found[-1].child(Operation.FORWARD, "run", {A: 10 * (number + 1)})
        span = OffsetRange("t", 0, 10 * number, 10 * (number + 1))
        found.append(replace(child, ranges=(span,)))
    return found


def rewind(head: LedgerEntry, target: LedgerEntry) -> LedgerEntry:
    return replace(head.child(Operation.REWIND, "run", target.offsets), target=target.version)


@pytest.mark.parametrize("count", range(9))
def test_a_moment_names_the_newest_version_committed_by_then(count: int) -> None:
    ledger = Ledger(*entries(count))
    for version, entry in enumerate(ledger.entries):
        assert entry.committed_at is not None
        assert ledger.find(entry.committed_at) == version
        assert ledger.find(entry.committed_at + timedelta(seconds=59)) == version
    assert ledger.find(NOON + timedelta(days=1)) == count


def test_a_moment_before_the_first_version_or_without_a_zone_is_refused() -> None:
    ledger = Ledger(*entries(3))
    with pytest.raises(UnknownCheckpointError, match="did not exist"):
        ledger.find(NOON - timedelta(microseconds=1))
    with pytest.raises(GoingBackError, match="no time zone"):
        ledger.find(NOON.replace(tzinfo=None))


@pytest.mark.parametrize("version", [-1, 4])
def test_a_version_that_never_was_is_refused_with_those_there_are(version: int) -> None:
    with pytest.raises(UnknownCheckpointError, match="versions 0 to 3"):
        Ledger(*entries(3)).find(version)


def test_a_version_that_was_left_behind_is_refused_and_a_moment_goes_on_to_what_stands() -> None:
    """Scenario: two rewinds, the second to before the first's target."""
    found = entries(4)
    found.append(rewind(found[-1], found[3]))
    found.append(rewind(found[-1], found[2]))
    ledger = Ledger(*found)
    assert [ledger.find(version) for version in (0, 1, 2, 6)] == [0, 1, 2, 6]
    for version, by in ((3, 6), (4, 5), (5, 6)):
        with pytest.raises(UnknownCheckpointError, match=f"version {by} rewound to"):
            ledger.find(version)
    at = [NOON + timedelta(minutes=version) for version in range(7)]
    assert [ledger.find(moment) for moment in at] == [0, 1, 2, 2, 2, 2, 6]


def test_a_version_missing_in_the_middle_is_damage_and_no_other_version() -> None:
    ledger = Ledger(*entries(4))
    del ledger.entries[2]
    with pytest.raises(LedgerDamagedError, match="version 2"):
        find_live_entry(ledger, ledger.head(), 2)


def test_a_plan_is_stale_once_the_head_is_another_or_gone() -> None:
    planned, other = entries(1)[-1], entries(1)[-1]
    for same in (planned, None):
        refuse_stale("p", same, same)
    for was, head in ((planned, other), (planned, None), (None, planned)):
        with pytest.raises(StalePlanError):
            refuse_stale("p", was, head)


def test_what_is_read_again_goes_from_the_target_to_where_the_head_stands() -> None:
    found = entries(3)
    new = replace(found[3].child(Operation.FORWARD, "run", {A: 30, B: 9}),
                  ranges=(OffsetRange("t", 1, 4, 9),))  # fmt: skip
    later = [*found[2:], new]
    assert ranges_since(found[1], new, later) == (
        OffsetRange("t", 0, 10, 30),
        OffsetRange("t", 1, 4, 9),
    )
    assert ranges_since(new, new, []) == ()


def test_a_replaced_topic_is_named_though_nothing_of_it_was_read() -> None:
    target = entries(1)[-1]
    head = replace(target.child(Operation.ACCEPT_LOSS, "run", target.offsets),
                   topic_ids={"t": "another"})  # fmt: skip
    assert ranges_since(target, head, [head]) == (OffsetRange("t", 0, 10, 10),)
    assert first_topic_ids([target, head]) == {"t": "u"}


def test_a_replay_reads_its_checkpoints_ranges_and_moves_no_offset() -> None:
    counts = [Counts(rows=10, rows_total=10 * n) for n in range(4)]
    found = [entry.with_counts(n) for entry, n in zip(entries(3), counts, strict=True)]
    first = checkpoints(found)[0]
    entry = replay_entry(found[-1], first, "run", {})
    assert (entry.version, entry.target, entry.checkpoint) == (4, 1, 1)
    assert (entry.ranges, entry.offsets) == (first.entry.ranges, found[-1].offsets)
    assert entry.counts == Counts(rows_total=20), "as if its rows were not there"
    replayed = entry.with_counts(Counts(rows=7, rows_total=27))
    again = replay_entry(replayed, checkpoints([*found, replayed])[0], "run", {})
    assert again.counts.rows_total == 20
