"""The hash by which an entry knows its parent."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta, timezone

import pytest

from eo_pipeline.ledger.entry import Checksum, Counts, Identity, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from tests.ledger.golden_values import ENTRIES

FORWARD = ENTRIES[1]
POINT = {"type": "struct", "fields": [{"name": "x", "type": "long", "metadata": {}}]}
CHECKSUM = Checksum("rules-1", "00ff-1-2", {"id": "long", "point": POINT})


def test_a_child_holds_the_hash_of_its_parent() -> None:
    child = FORWARD.child(Operation.FORWARD, "run", FORWARD.offsets)
    assert child.identity.parent == FORWARD.content_hash
    assert child.child(Operation.FORWARD, "run", {}).identity.parent == child.content_hash


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.operation)
def test_an_entry_that_was_stored_and_read_back_has_the_same_hash(entry: LedgerEntry) -> None:
    assert LedgerEntry.from_json(entry.to_json()).content_hash == entry.content_hash
    elsewhere = entry.started_at.astimezone(timezone(timedelta(hours=9)))
    assert (
        replace(entry, started_at=elsewhere, committed_at=None).content_hash == entry.content_hash
    )


@pytest.mark.parametrize(
    "change",
    [
        {"offsets": {**FORWARD.offsets, TopicPartition("x", 2): 6}},
        {"ranges": (*FORWARD.ranges, OffsetRange("x", 3, 0, 5))},
        {"topic_ids": {"x": "other"}},
        {"counts": replace(FORWARD.counts, rows=8)},
        {"counts": replace(FORWARD.counts, checksum=CHECKSUM)},
        {"target": 0},
        {"ledger_id": "m" * 32},
        {"operation": Operation.REPLAY},
        {"run_id": "another"},
        {"details": {"reason": "another"}},
        {"identity": Identity(parent="p")},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_is_changed_in_an_entry_changes_its_hash(change: dict[str, object]) -> None:
    assert replace(FORWARD, **change).content_hash != FORWARD.content_hash  # type: ignore[arg-type]


def test_a_replay_publishes_under_its_targets_number_and_everything_else_under_its_own() -> None:
    for operation in Operation:
        child = replace(FORWARD.child(operation, "run", {}), target=1)
        assert child.checkpoint == (1 if operation is Operation.REPLAY else child.version)


def test_checksums_are_read_back_as_they_were_written() -> None:
    """A store of JSON may put keys in another order; PostgreSQL does."""
    counts = Counts(rows=1, checksum=CHECKSUM, dead_letters_checksum=CHECKSUM)
    entry = replace(FORWARD, counts=counts)
    stored = json.loads(json.dumps(entry.to_json(), sort_keys=True))
    read = LedgerEntry.from_json(stored)
    assert read == entry
    assert not read.is_altered
    assert not LedgerEntry.from_json(FORWARD.to_json()).counts.checksum


def test_a_count_of_nothing_is_not_the_same_as_none_at_all() -> None:
    without = replace(FORWARD, counts=Counts(records=0))
    assert without.content_hash != replace(FORWARD, counts=Counts(records=1)).content_hash
