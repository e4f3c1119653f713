"""The ledger as a tree: what stands is its trunk, what a rewind left behind its branches. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eo_pipeline.ledger.branch import live_branch
from eo_pipeline.ledger.entry import LedgerEntry, Operation

#: The lane of what stands.
TRUNK = 0


@dataclass(frozen=True)
class Node:
    """One version. ``grew_from`` is the version whose state it began with, None for the first that
    is shown, or for one that grew from a version which is not shown.
    """

    entry: LedgerEntry
    lane: int
    live: bool
    grew_from: int | None


def tree(entries: Sequence[LedgerEntry]) -> list[Node]:
    """A node for each of ``entries``, oldest first.

    Args:
        entries: a stretch of one ledger without a gap, oldest first, that ends at the head.
    """
    shown = {entry.version for entry in entries}
    grew_from = {entry.version: _grew_from(entry, shown) for entry in entries}
    lanes = _lanes(entries, grew_from)
    live = {entry.version for entry in live_branch(entries)}
    return [
        Node(entry, lanes[entry.version], entry.version in live, grew_from[entry.version])
        for entry in entries
    ]


def _grew_from(entry: LedgerEntry, shown: set[int]) -> int | None:
    before = entry.version - 1
    if entry.operation is Operation.REWIND and entry.target is not None:
        before = entry.target
    return before if before in shown else None


def _lanes(entries: Sequence[LedgerEntry], grew_from: dict[int, int | None]) -> dict[int, int]:
    """Each branch has a lane of its own for as long as its lines need it; lanes are used again."""
    lanes = {entry.version: TRUNK for entry in entries}
    taken: list[int] = []  # the last version of each lane below the trunk
    for branch in _branches(entries):
        root = grew_from[branch[0]]
        first = branch[0] if root is None else root + 1
        free = next((n for n, last in enumerate(taken) if last < first), len(taken))
        taken[free : free + 1] = [branch[-1]]
        lanes |= dict.fromkeys(branch, free + 1)
    return lanes


def _branches(entries: Sequence[LedgerEntry]) -> list[list[int]]:
    """The versions that one rewind left behind, oldest first, for each rewind that did."""
    found, live = [], list[int]()
    for entry in entries:
        if entry.operation is Operation.REWIND and entry.target is not None:
            target = entry.target
            left = [version for version in live if version > target]
            live = [version for version in live if version <= target]
            if left:
                found.append(left)
        live.append(entry.version)
    return found
