"""A ledger that is not what was committed is told from one that is; entries made here, no store."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eo_pipeline.errors import LedgerDamagedError
from eo_pipeline.ledger.entry import EntryId, LedgerEntry, Operation
from eo_pipeline.ledger.history import contiguity_errors, damages, follow, verify_head
from eo_pipeline.testing import child_of, first_entry

Raw = dict[str, Any]


def ledger(length: int = 6) -> list[Raw]:
    """As a store keeps it."""
    entries = [first_entry("p")]
    while len(entries) < length:
        entries.append(child_of(entries[-1], 10))
    return [entry.to_json() for entry in entries]


def read(kept: list[Raw]) -> list[LedgerEntry]:
    return [LedgerEntry.from_json(raw) for raw in kept]


def told(kept: list[Raw], since: int = 0) -> list[int]:
    return [damage.version for damage in damages(read(kept), since)]


def test_what_was_committed_is_not_damaged() -> None:
    assert told(ledger()) == []
    assert list(follow(read(ledger()), 0))[-1].version == 5
    assert told(ledger()[3:], since=3) == []
    assert contiguity_errors(read(ledger()), 0) == []


@pytest.mark.parametrize("version", range(6))
def test_a_changed_entry_is_named(version: int) -> None:
    kept = ledger()
    kept[version]["offsets"]["events"]["0"] += 1
    assert set(told(kept)) == {version}
    with pytest.raises(LedgerDamagedError, match=f"version {version} was changed"):
        list(follow(read(kept), 0))
    assert f"version {version} was changed" in " ".join(contiguity_errors(read(kept)))


@pytest.mark.parametrize("version", range(5))
def test_a_changed_entry_with_a_fitting_hash_is_named_by_its_child(version: int) -> None:
    kept = ledger()
    kept[version]["counts"]["rows"] += 1
    changed = LedgerEntry.from_json(kept[version])
    kept[version]["identity"]["content"] = changed.content_hash
    assert told(kept) == [version]


@pytest.mark.parametrize("version", range(5))
def test_a_missing_entry_is_named(version: int) -> None:
    kept = ledger()
    del kept[version]
    assert told(kept) == [version]
    with pytest.raises(LedgerDamagedError, match=f"version {version} is missing"):
        list(follow(read(kept), 0))


def test_the_version_a_stretch_begins_with_is_looked_at_too() -> None:
    assert told(ledger()[4:], since=3) == [3]
    with pytest.raises(LedgerDamagedError, match="version 3 is missing"):
        list(follow(read(ledger())[4:], 3))


def test_a_child_of_another_is_named() -> None:
    kept = ledger()
    kept[3]["parent"] = [2, "f" * 32]
    assert 3 in told(kept)


def test_the_head_is_compared_with_its_parent() -> None:
    *_, parent, head = read(ledger())
    verify_head(head, parent)
    with pytest.raises(LedgerDamagedError, match="version 4 is missing"):
        verify_head(head, None)
    with pytest.raises(LedgerDamagedError, match="version 4 was changed"):
        verify_head(head, replace(parent, run_id="another"))
    first = read(ledger())[0]
    verify_head(first, None)


def test_what_a_later_release_added_belongs_to_the_hash() -> None:
    """Scenario: the ledger was written by a later release, whose counts this one does not know.
    Outcome: neither it nor what this release puts on top of it seems damaged to either.
    """
    later = first_entry("p").to_json()
    later["counts"]["future"] = "abc"
    later["identity"]["content"] = LedgerEntry.from_json(later).content_hash
    read_here = LedgerEntry.from_json(later)
    assert not read_here.is_altered
    on_top = child_of(read_here, 10)
    assert told([later, on_top.to_json()]) == []
    later["counts"]["future"] = "abd"
    assert told([later, on_top.to_json()]) == [0, 0]


def test_the_chain_begins_on_top_of_what_an_earlier_release_wrote() -> None:
    kept = ledger()
    for raw in kept[:3]:
        del raw["identity"]
    head = read(kept[:3])[-1]
    child = child_of(head, 10)
    assert child.identity.parent is None
    assert child_of(child, 10).identity.parent == child.content_hash
    assert told([*kept[:3], child.to_json()]) == []


def test_a_child_knows_the_content_of_its_parent() -> None:
    parent = first_entry("p")
    child = parent.child(Operation.FORWARD, "run", {})
    assert child.is_child_of(parent)
    assert not child.is_child_of(replace(parent, run_id="another"))
    assert not child.is_child_of(None)
    assert parent.is_child_of(None)
    assert not replace(child, parent=EntryId(0, "f" * 32)).is_child_of(parent)
