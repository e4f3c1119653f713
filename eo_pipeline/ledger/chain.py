"""Whether entries are what was committed: each holds its own hash and its parent's. Pure, no I/O.

An entry of an earlier release has no hash; the chain begins, unverified, with the last of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from eo_pipeline.errors import LedgerDamagedError
from eo_pipeline.ledger.entry import START_VERSION, LedgerEntry


class Damage(NamedTuple):
    """What is wrong with the entry at ``version``; the text goes after its number."""

    version: int
    text: str


_CHANGED = "was changed after it was committed: its content does not fit its hash"


def damages(entries: Iterable[LedgerEntry], since: int = START_VERSION) -> Iterator[Damage]:
    """All that is wrong with a ledger from version ``since`` on, oldest entry first. In bounded
    memory.
    """
    before: LedgerEntry | None = None
    expected = since
    for entry in entries:
        if entry.version > expected:
            yield from _missing(expected, entry)
        elif before is not None and not entry.is_child_of(before):
            yield _misfit(entry, before)
        if entry.is_altered:
            yield Damage(entry.version, _CHANGED)
        before, expected = entry, entry.version + 1


def follow(entries: Iterable[LedgerEntry], since: int) -> Iterator[LedgerEntry]:
    """``entries`` of one ledger from version ``since`` on, as far as each is what was committed.

    Raises:
        LedgerDamagedError: one is missing, was changed, or does not stand on the one before.
    """
    before: LedgerEntry | None = None
    for entry in entries:
        pair = (entry,) if before is None else (before, entry)
        _refuse(entry.pipeline, damages(pair, since if before is None else before.version))
        yield entry
        before = entry


def verify_head(head: LedgerEntry, parent: LedgerEntry | None) -> None:
    """Return if ``head`` is what was committed, on top of what stands at its parent's version.

    Raises:
        LedgerDamagedError: it is not, or ``parent`` is missing or was changed.
    """
    if head.parent is None:
        _refuse(head.pipeline, damages([head]))
    elif parent is None:
        _refuse(head.pipeline, _missing(head.parent.version, head))
    else:
        _refuse(head.pipeline, damages([parent, head], parent.version))


def _refuse(pipeline: str, found: Iterator[Damage]) -> None:
    damage = next(found, None)
    if damage is not None:
        raise LedgerDamagedError(pipeline, *damage)


def _missing(first: int, next_one: LedgerEntry) -> Iterator[Damage]:
    for version in range(first, next_one.version):
        yield Damage(version, f"is missing, and version {next_one.version} is there")


def _misfit(entry: LedgerEntry, before: LedgerEntry) -> Damage:
    if entry.parent == before.id:
        seen = "it is not as it was when version"
        return Damage(
            before.version, f"was changed: {seen} {entry.version} was committed on top of it"
        )
    return Damage(entry.version, f"is not a child of version {before.version}")
