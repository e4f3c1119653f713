"""The ledger is pruned: a version of it says from which version on it is kept, and later what is
below is removed.

The floor is an entry like any other, through the compare-and-swap: of a rewind to below it and the
floor one wins, and the other is refused. Removal waits an hour more, for those who read the ledger
as it was before, and each maintenance goes on with what a killed one left.

What later entries need of those below goes into the entry of the floor: the texts of schemas, and
the columns that rows are written as.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from eo_pipeline.errors import FencedError, UnknownCheckpointError
from eo_pipeline.ledger.entry import Counts, Floor, LedgerEntry, Operation
from eo_pipeline.ledger.schemas import KnownSchemas, ReadWith, WrittenWith
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.targets import newest_by
from eo_pipeline.sinks.maintenance import Upkeep

#: For whom the ledger has changed only once they look again: an audit, a page of a report.
READERS_HAVE = timedelta(hours=1)

#: Fewer entries are not worth a version of the ledger.
LEAST = 100

EntryAt = Callable[[int], LedgerEntry | None]


def prune(
    steps: Steps, head: LedgerEntry | None, kept_for: timedelta | None, *, dry_run: bool
) -> Iterator[Upkeep]:
    """What is below the floor is removed, also of a floor that was asked for once; then, if entries
    shall be ``kept_for`` so long, a higher floor is set.

    Raises:
        LedgerDamagedError: the ledger does not hold what it says it holds.
        SinkUnavailableError: the store does not answer.
    """
    why = steps.session.keeps_ledger
    if why is not None:
        if kept_for is not None:
            yield Upkeep("ledger", f"kept whole: {why}")
        return
    if head is not None and head.identity.floor is not None:
        yield _removal(steps, head.identity.floor, dry_run=dry_run)
    if head is not None and kept_for is not None:
        yield _raised(steps, head, datetime.now(UTC) - kept_for, dry_run=dry_run)


def _removal(steps: Steps, floor: Floor, *, dry_run: bool) -> Upkeep:
    """Of what an earlier maintenance set the floor above."""
    begun, said_by = time.monotonic(), steps.session.entry(floor.since)
    since = said_by.committed_at if said_by else None
    if since is not None and datetime.now(UTC) < since + READERS_HAVE:
        return Upkeep("ledger", f"what is below version {floor.version} goes in an hour or later")
    count = steps.session.prune(dry_run=dry_run)
    if not count:
        return Upkeep("ledger", f"nothing is left below version {floor.version}")
    said = "would remove" if dry_run else "removed"
    remark = f"{said} what is below version {floor.version}"
    seconds = 0.0 if dry_run else time.monotonic() - begun
    return Upkeep("ledger", remark, count, 0, seconds=seconds)


def _raised(steps: Steps, head: LedgerEntry, until: datetime, *, dry_run: bool) -> Upkeep:
    """The floor, up to the newest version that was committed by then: it is the first kept."""
    try:
        version = newest_by(steps.session, head, until)
    except UnknownCheckpointError:
        version = head.floor
    count = version - head.floor
    if count < LEAST:
        return Upkeep("ledger", f"{max(count, 0)} entries are old enough, {LEAST} are worth it")
    if dry_run:
        return Upkeep("ledger", f"would set the floor to version {version}, {count:,} versions up")
    if steps.recovery.waiting(head):
        return Upkeep("ledger", "a run is under way: the floor is set by the next maintenance")
    try:
        entry = steps.publish_alone(floor_entry(head, version, steps.session.entry, steps.run_id))
    except FencedError:
        return Upkeep("ledger", "a run was faster: the floor is set by the next maintenance")
    said = f"version {entry.version} sets the floor to version {version}, {count:,} versions up"
    return Upkeep("ledger", f"{said}: what is below goes in an hour or later")


def floor_entry(head: LedgerEntry, version: int, entry_at: EntryAt, run_id: str) -> LedgerEntry:
    """The entry on top of ``head`` that has ``version`` as the first one to go back to.

    Raises:
        LedgerDamagedError: the ledger does not hold what it says it holds.
    """
    child = head.child(Operation.PRUNE, run_id, head.offsets)
    texts = partial(_texts_below, version, head.pipeline, entry_at)
    counts = replace(
        child.counts,
        schemas=texts(head.known_schemas, lambda counts: counts.schemas),
        key_schemas=texts(head.known_key_schemas, lambda counts: counts.key_schemas),
        written=_written_below(version, head, entry_at),
    )
    identity = replace(child.identity, floor=Floor(version, child.version))
    return replace(child, counts=counts, identity=identity)


def _texts_below(
    version: int,
    pipeline: str,
    entry_at: EntryAt,
    known: KnownSchemas,
    read_of: Callable[[Counts], ReadWith | None],
) -> ReadWith | None:
    """The schemas whose texts are in entries below ``version``."""

    def read_at(version: int) -> ReadWith | None:
        entry = entry_at(version)
        return read_of(entry.counts) if entry else None

    return known.with_texts(
        {key: known.text(pipeline, key, read_at) for key in known.held_below(version)}
    )


def _written_below(version: int, head: LedgerEntry, entry_at: EntryAt) -> WrittenWith | None:
    """The columns of the newest rows, if an entry below ``version`` has them."""
    last = head.last_written
    if last is None or last.since >= version:
        return None
    entry = entry_at(last.since)
    return entry.counts.written if entry else None
