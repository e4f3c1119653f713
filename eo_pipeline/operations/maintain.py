"""Maintenance: compact the table's files, settle the attempts of dead runs, prune the ledger if
configured. No row changes, so that runs may go on at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from eo_pipeline.errors import FencedError, UnknownCheckpointError
from eo_pipeline.ledger.entry import Counts, Floor, LedgerEntry, Operation
from eo_pipeline.ledger.schemas import KnownSchemas, ReadWith, WrittenWith
from eo_pipeline.operations.change_plan import newest_by
from eo_pipeline.progress import phase
from eo_pipeline.runs.checkpoint import RunContext, commit_alone, recover
from eo_pipeline.sinks.capabilities import Maintenance, Upkeep
from eo_pipeline.sinks.session import SinkSession

#: Time in which readers of the old ledger end: an audit, a page of a report.
READERS_HAVE = timedelta(hours=1)

#: Entries to prune that are worth a version of the ledger.
LEAST = 100

EntryAt = Callable[[int], LedgerEntry | None]


def prune(
    context: RunContext, head: LedgerEntry | None, kept_for: timedelta | None, *, dry_run: bool
) -> Iterator[Upkeep]:
    """Remove the entries below the present floor, then raise the floor to keep entries
    ``kept_for`` that long, if given.

    Raises:
        LedgerDamagedError: the ledger does not hold what it says it holds.
        SinkUnavailableError: the store does not answer.
    """
    why = context.session.keeps_ledger
    if why is not None:
        if kept_for is not None:
            yield Upkeep("ledger", f"kept whole: {why}")
        return
    if head is not None and head.identity.floor is not None:
        yield _removal(context.session, head.identity.floor, dry_run=dry_run)
    if head is not None and kept_for is not None:
        yield _raised(context, head, datetime.now(UTC) - kept_for, dry_run=dry_run)


def _removal(session: SinkSession, floor: Floor, *, dry_run: bool) -> Upkeep:
    """Remove the entries below a floor that an earlier maintenance set."""
    begun, raised_by = time.monotonic(), session.entry(floor.since)
    since = raised_by.committed_at if raised_by else None
    if since is not None and datetime.now(UTC) < since + READERS_HAVE:
        return Upkeep("ledger", f"entries below version {floor.version} expire in an hour or later")
    count = session.prune(dry_run=dry_run)
    if not count:
        return Upkeep("ledger", f"nothing is left below version {floor.version}")
    verb = "would remove" if dry_run else "removed"
    remark = f"{verb} what is below version {floor.version}"
    seconds = 0.0 if dry_run else time.monotonic() - begun
    return Upkeep("ledger", remark, count, 0, seconds=seconds)


def _raised(context: RunContext, head: LedgerEntry, until: datetime, *, dry_run: bool) -> Upkeep:
    """Raise the floor to the newest version committed by ``until``, the first one kept."""
    try:
        version = newest_by(context.session, head, until)
    except UnknownCheckpointError:
        version = head.floor
    count = version - head.floor
    if count < LEAST:
        return Upkeep("ledger", f"{max(count, 0)} entries are old enough, {LEAST} are worth it")
    if dry_run:
        return Upkeep("ledger", f"would set the floor to version {version}, {count:,} versions up")
    if context.recovery.waiting(head):
        return Upkeep("ledger", "a run is under way: the floor is set by the next maintenance")
    try:
        entry = commit_alone(
            context, floor_entry(head, version, context.session.entry, context.run_id)
        )
    except FencedError:
        return Upkeep("ledger", "a run was faster: the floor is set by the next maintenance")
    message = f"version {entry.version} sets the floor to version {version}, {count:,} versions up"
    return Upkeep("ledger", f"{message}; older entries expire in an hour or later")


def floor_entry(head: LedgerEntry, version: int, entry_at: EntryAt, run_id: str) -> LedgerEntry:
    """Return the entry on top of ``head`` that makes ``version`` the floor.

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
    schemas: KnownSchemas,
    read_of: Callable[[Counts], ReadWith | None],
) -> ReadWith | None:
    """Return the schemas whose texts are in entries below ``version``."""

    def read_at(version: int) -> ReadWith | None:
        entry = entry_at(version)
        return read_of(entry.counts) if entry else None

    return schemas.with_texts(
        {key: schemas.text(pipeline, key, read_at) for key in schemas.held_below(version)}
    )


def _written_below(version: int, head: LedgerEntry, entry_at: EntryAt) -> WrittenWith | None:
    """Return the columns of the newest rows, if an entry below ``version`` holds them."""
    last = head.last_written
    if last is None or last.since >= version:
        return None
    entry = entry_at(last.since)
    return entry.counts.written if entry else None


@dataclass(frozen=True, kw_only=True)
class MaintenanceReport:
    """Work done, or with ``dry_run`` to be done; ``version`` is the ledger's head."""

    pipeline: str
    version: int | None
    dry_run: bool
    work: tuple[Upkeep, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "pipeline": self.pipeline,
            "version": self.version,
            "dry_run": self.dry_run,
            "work": [step.to_json() for step in self.work],
        }


def maintain(context: RunContext, rules: Maintenance, *, dry_run: bool) -> MaintenanceReport:
    """See :meth:`eo_pipeline.pipeline.Pipeline.maintain`."""
    head = context.session.verified(context.session.head())
    work = tuple(_work(context, head, rules, dry_run=dry_run))
    head = context.session.head()
    return MaintenanceReport(
        pipeline=context.pipeline,
        version=head.version if head else None,
        dry_run=dry_run,
        work=work,
    )


def _work(
    context: RunContext, head: LedgerEntry | None, rules: Maintenance, *, dry_run: bool
) -> Iterator[Upkeep]:
    with phase(f"{context.pipeline}: staging"):
        yield _staging(context, head, dry_run=dry_run)
    with phase(f"{context.pipeline}: maintenance of {context.sink.table_name}"):
        yield from context.session.maintain(rules, dry_run=dry_run)
    with phase(f"{context.pipeline}: the ledger"):
        now = context.session.verified(context.session.head())
        yield from prune(context, now, rules.ledger_kept_for, dry_run=dry_run)


def _staging(context: RunContext, head: LedgerEntry | None, *, dry_run: bool) -> Upkeep:
    """Recover as a run does: commit promises of dead runs, delete dead attempts."""
    begun, staging = time.monotonic(), context.recovery.staging
    before = len(staging.attempts(head.ledger_id if head else None))
    if dry_run:
        message = (
            "attempts of runs; those of dead ones would be settled" if before else "no attempts"
        )
        return Upkeep("staging", message, before, before)
    promised = recover(context)
    after = len(staging.attempts(promised.ledger_id if promised else None))
    message = "attempts of dead runs settled" if after < before else "nothing to settle"
    return Upkeep("staging", message, before, after, seconds=time.monotonic() - begun)
