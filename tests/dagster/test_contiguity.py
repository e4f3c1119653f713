"""Each way in which a ledger can be broken is found, and a good one passes."""

from __future__ import annotations

import re
from dataclasses import replace

import dagster as dg
import pytest

from eo_pipeline.dagster.checks import BREAKS_NAMED, agreement_result, contiguity_result
from eo_pipeline.ledger.entry import EntryId, LedgerEntry, Operation
from eo_pipeline.ledger.history import contiguity_errors
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def good_ledger() -> list[LedgerEntry]:
    """Start, one checkpoint of one partition, one that also takes up a new partition."""
    start = LedgerEntry("p", "l", 0, "t0", None, Operation.START, {A: 5}, topic_ids={"t": "U1"})
    first = forward(start, {A: 10}, OffsetRange("t", 0, 5, 10))
    second = forward(first, {A: 12, B: 9}, OffsetRange("t", 0, 10, 12), OffsetRange("t", 1, 3, 9))
    return [start, first, second]


def forward(
    parent: LedgerEntry, offsets: dict[TopicPartition, int], *ranges: OffsetRange
) -> LedgerEntry:
    child = parent.child(Operation.FORWARD, "run", offsets)
    return replace(child, ranges=ranges, transaction_id=f"t{child.version}")


def test_a_good_ledger_has_no_breaks() -> None:
    assert contiguity_errors(good_ledger()) == []
    assert contiguity_errors([]) == []


def test_a_rewind_may_move_offsets_without_reading() -> None:
    entries = good_ledger()
    back = replace(entries[-1].child(Operation.REWIND, "run", {A: 5}), target=0)
    assert contiguity_errors([*entries, back]) == []


def test_two_live_checkpoints_that_read_the_same_offsets_are_named_by_the_topics_uuid() -> None:
    start, first, second = good_ledger()
    aside = replace(second.child(Operation.ACCEPT_LOSS, "run", {B: 9}), transaction_id="t3")

    def ledger(uuid: str) -> list[LedgerEntry]:
        again = forward(aside, {A: 12, B: 9}, OffsetRange("t", 0, 8, 12))
        return [start, first, second, aside, replace(again, topic_ids={"t": uuid})]

    assert contiguity_errors(ledger("U1")) == [
        "versions 1 and 4 both stand, and both read t[0] [8, 10)",
        "versions 2 and 4 both stand, and both read t[0] [10, 12)",
    ]
    assert contiguity_errors(ledger("U2")) == []
    doubled = ledger("U1")
    back = replace(doubled[-1].child(Operation.REWIND, "run", start.offsets), target=0)
    assert contiguity_errors([*doubled, back]) == []


def test_a_partition_that_was_put_aside_is_read_on_where_it_was_left() -> None:
    start, first, second = good_ledger()
    child = second.child(Operation.ACCEPT_LOSS, "run", {B: 9})
    kept = replace(child.identity, past_topics={"U1": {A: 12}})
    aside = replace(child, transaction_id="t3", identity=kept)

    def ledger(begun: int) -> list[LedgerEntry]:
        read = forward(aside, {A: 20, B: 9}, OffsetRange("t", 0, begun, 20))
        return [start, first, second, aside, read]

    assert contiguity_errors(ledger(12)) == []
    assert contiguity_errors(ledger(13)) == ["version 4 read t[0] [13, 20), the ledger stood at 12"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parent": EntryId(0, "x")}, "version 1 is not a child of version 0"),
        ({"ledger_id": "other"}, "version 1 belongs to another ledger"),
        (
            {"ranges": (OffsetRange("t", 0, 6, 10),)},
            r"read t\[0\] \[6, 10\), .* stood at 5",
        ),
        ({"ranges": (OffsetRange("t", 0, 5, 9),)}, r"t\[0\] stands at 10, by its ranges .* at 9"),
        ({"offsets": {}}, r"t\[0\] stands at None"),
        ({"offsets": {A: 10, B: 1}}, r"t\[1\] stands at 1"),
    ],
)
def test_a_break_is_named(change: dict[str, object], said: str) -> None:
    start, first, _ = good_ledger()
    result = contiguity_result([start, replace(first, **change)])  # type: ignore[arg-type]
    assert not result.passed
    assert result.description is not None
    assert re.search(said, result.description)


def test_a_missing_version_is_a_break() -> None:
    start, _, second = good_ledger()
    assert not contiguity_result([start, second]).passed


def test_many_breaks_are_counted() -> None:
    wide = {TopicPartition("t", n): 1 for n in range(BREAKS_NAMED + 5)}
    start = LedgerEntry("p", "l", 0, "t0", None, Operation.START, {})
    result = contiguity_result([start, forward(start, wide)])
    assert result.description is not None
    assert result.description.endswith("and 5 more")


def back(operation: Operation, target: int, **changes: object) -> list[LedgerEntry]:
    """A good ledger, and a rewind or replay that is wrong in one thing."""
    entries = good_ledger()
    head, aim = entries[-1], entries[target]
    stands = aim.offsets if operation is Operation.REWIND else head.offsets
    ranges = aim.ranges if operation is Operation.REPLAY else ()
    entry = replace(head.child(operation, "run", stands), target=target, ranges=ranges)
    return [*entries, replace(entry, **changes)]  # type: ignore[arg-type]


@pytest.mark.parametrize("operation", [Operation.REWIND, Operation.REPLAY])
def test_going_back_to_what_is_there_is_no_break(operation: Operation) -> None:
    assert contiguity_errors(back(operation, 1)) == []


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (back(Operation.REWIND, 1, offsets={A: 11}), "does not stand where 1 stood"),
        (back(Operation.REWIND, 0, offsets={A: 6}), "does not stand where 0 stood"),
        (back(Operation.REPLAY, 1, offsets={A: 10}), "replay and moved the offsets"),
        (
            back(Operation.REPLAY, 1, ranges=(OffsetRange("t", 0, 5, 9),)),
            "replayed other ranges than those of 1",
        ),
    ],
)
def test_going_back_to_something_else_is_a_break(entries: list[LedgerEntry], said: str) -> None:
    (found,) = contiguity_errors(entries)
    assert said in found


def test_a_stretch_begins_with_the_version_it_should() -> None:
    entries = good_ledger()
    assert contiguity_errors(entries[1:]) == []
    assert contiguity_errors(entries[1:], since=1) == []
    (missing,) = contiguity_errors(entries[1:], since=0)
    assert missing.startswith("version 0 is missing")


@pytest.mark.parametrize(
    ("shown", "head", "passed", "severity", "said"),
    [
        (None, None, True, None, "both are empty"),
        (EntryId(3, "a"), EntryId(3, "a"), True, None, "both at version 3"),
        (EntryId(2, "a"), EntryId(3, "b"), False, "WARN", "wait for the reconciler"),
        (None, EntryId(3, "b"), False, "WARN", "Dagster shows nothing"),
        (EntryId(3, "a"), EntryId(3, "b"), False, "ERROR", "does not contain"),
        (EntryId(4, "a"), EntryId(3, "b"), False, "ERROR", "does not contain"),
        (EntryId(4, "a"), None, False, "ERROR", "was reset or replaced"),
    ],
)
def test_behind_is_a_warning_and_anything_else_is_an_error(
    shown: EntryId | None, head: EntryId | None, passed: bool, severity: str | None, said: str
) -> None:
    result = agreement_result(shown, head)
    assert result.passed is passed
    assert said in (result.description or "")
    if severity:
        assert result.severity is dg.AssetCheckSeverity[severity]
