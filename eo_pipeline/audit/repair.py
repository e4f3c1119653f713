"""Step 5: the replays that would put a table right, or why none can. Pure, but for the check."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import groupby

from eo_pipeline.audit.compare import RowKind, Tallies
from eo_pipeline.audit.report import CheckpointAudit, Holes, Repair, delete_condition

#: Stretches named in a report, and asked about; each is a plan of its own.
REPAIRS_MAX = 50

#: Says why these checkpoints cannot be replayed, None if they can.
Check = Callable[[Collection[int]], str | None]

#: Of a ledger that is not what was committed nobody can tell which rows are rightful.
LEDGER_FIRST = Repair(
    None,
    None,
    refused="first bring the ledger's versions named above back as they were committed, from a "
    "backup of the same moment as the table, and audit again. Until then delete no rows and replay "
    "nothing: which rows are rightful is what the ledger would tell",
)

_GONE = (
    "Kafka no longer holds all that they read. Restore the records (a mirror, tiered storage), or "
    "correct the rows by hand"
)
_LOST = (
    "Kafka has lost records they read, and a replay would take these records' rows out of the "
    "table too. Restore the records first"
)


def repairs(
    audited: Sequence[CheckpointAudit], tallies: Tallies, newest: int, check: Check
) -> list[Repair]:
    """At most :data:`REPAIRS_MAX` of each kind: replays first, then rows to delete by hand."""
    replays = list(_replays(audited, check))[:REPAIRS_MAX]
    live = {each.version for each in audited}
    return (
        replays
        + [
            Repair(None, None, condition=delete_condition(number, newest))
            for number in sorted(_strays(tallies, live), key=lambda n: -1 if n is None else n)
        ][:REPAIRS_MAX]
    )


def _strays(tallies: Tallies, live: set[int]) -> Iterator[int | None]:
    for number, kinds in tallies.items():
        ours = any(tally.found for kind, tally in kinds.items() if kind is not RowKind.NOT_OURS)
        if ours and number not in live:
            yield number


def _replays(audited: Sequence[CheckpointAudit], check: Check) -> Iterator[Repair]:
    """Neighbours among the live checkpoints that need the same are one stretch."""
    for hindrance, stretch in groupby(audited, _hindrance):
        if hindrance is None:
            continue
        versions = [each.version for each in stretch]
        gone = hindrance or check(versions)
        first, last = versions[0], versions[-1]
        command = None if gone else f"eo replay {first} {last}"
        yield Repair(first, last, command, refused=gone or None)


def _hindrance(each: CheckpointAudit) -> str | None:
    """None: needs no repair. Empty: nothing known that hinders a replay."""
    if not each.differs:
        return None
    if each.holes is Holes.LOSS:
        return _LOST
    return _GONE if each.unreadable else ""
