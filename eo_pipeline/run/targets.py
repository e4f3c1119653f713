"""What a rewind, a replay or a fork aims at: versions that stand, and ranges Kafka still holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from datetime import datetime

from eo_pipeline.errors import (
    GoingBackError,
    PrunedError,
    StalePlanError,
    UnknownCheckpointError,
)
from eo_pipeline.ledger.branch import Checkpoint, checkpoints, live_branch, spans
from eo_pipeline.ledger.chain import Damage, follow
from eo_pipeline.ledger.entry import START_VERSION, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.sinks.identity import LATER_ROWS
from eo_pipeline.sinks.protocol import SinkSession
from eo_pipeline.source.marks import validated
from eo_pipeline.source.rereading import Rereading

#: Operations after which rows are gone, or others.
_GOES_BACK = frozenset({Operation.REWIND, Operation.REPLAY, Operation.ADOPT})


def current_head(steps: Steps) -> LedgerEntry:
    """The head as it is, and as it was committed; nothing is changed.

    Raises:
        UnknownCheckpointError: the pipeline has no ledger yet.
        LedgerDamagedError: it, or its parent, is not what was committed.
    """
    head = steps.session.verified(head_as_it_is(steps))
    assert head is not None
    return head


def head_as_it_is(steps: Steps) -> LedgerEntry:
    """The head, whatever was done to it.

    Raises:
        UnknownCheckpointError: the pipeline has no ledger yet.
    """
    head = steps.session.head()
    if head is None:
        raise UnknownCheckpointError(
            f"Pipeline {steps.pipeline!r} has no ledger yet: nothing was ever committed. Run it "
            "first."
        )
    return head


def kept_from(session: SinkSession) -> int:
    """The first version that the ledger keeps."""
    head = session.head()
    return head.floor if head else START_VERSION


def newest_entries(session: SinkSession, count: int) -> list[LedgerEntry]:
    """The last ``count`` entries, oldest first.

    Raises:
        LedgerDamagedError: one of them is missing or was changed.
    """
    head = session.verified(session.head())
    if head is None:
        return []
    since = max(head.floor, head.version + 1 - count)
    return list(follow(session.history(since), since))


def later_rows(session: SinkSession) -> Iterator[Damage]:
    """The version that is lost if the table has rows that the ledger, which ends below them, does
    not speak of.
    """
    if session.has_later_rows(thorough=False):
        head = session.head()
        yield Damage(head.version + 1 if head else START_VERSION, LATER_ROWS)


def refuse_stale(pipeline: str, planned: LedgerEntry | None, head: LedgerEntry | None) -> None:
    """Return if the ledger's ``head`` is still the one that was ``planned`` from; ``None`` is that
    of an empty ledger.

    Raises:
        StalePlanError: it is not.
    """
    if (head.id if head else None) != (planned.id if planned else None):
        raise stale(pipeline, planned, head)


def stale(pipeline: str, planned: LedgerEntry | None, head: LedgerEntry | None) -> StalePlanError:
    """The error of a plan made at ``planned``, now that the ledger is at ``head``."""
    found = (head.version, head.transaction_id) if head else (None, None)
    return StalePlanError(pipeline, planned.version if planned else None, *found)


def look_again(session: SinkSession, head: LedgerEntry) -> tuple[int, bool]:
    """The newest version, and whether the ledger has gone back since ``head``."""
    newest, went_back = head.version, False
    for entry in session.history(head.version + 1):
        newest, went_back = entry.version, went_back or entry.operation in _GOES_BACK
    return newest, went_back


def find_live_entry(
    session: SinkSession, head: LedgerEntry, wanted: int | datetime
) -> tuple[LedgerEntry, list[LedgerEntry]]:
    """The live entry ``wanted`` names, and all entries after it, oldest first.

    A moment names the newest version committed by then that still stands.

    Raises:
        UnknownCheckpointError: there is none, or a rewind left it behind.
        PrunedError: it is not kept any more.
        LedgerDamagedError: it is missing, or an entry from there on is not what was committed.
    """
    moment = isinstance(wanted, datetime)
    version = newest_by(session, head, wanted) if isinstance(wanted, datetime) else wanted
    refuse_unkept(head, version)
    while True:
        entries = list(follow(session.history(version), version))
        if entries[0] in live_branch(entries):
            return entries[0], entries[1:]
        left_behind = next(entry for entry in entries[1:] if _leaves(entry, version))
        target = left_behind.target or START_VERSION
        # a rewind stands where its target stood, also if the target is not kept any more
        same = target if target >= head.floor else left_behind.version
        if not moment:
            raise UnknownCheckpointError(
                f"Pipeline {head.pipeline!r}: version {version} no longer stands: version "
                f"{left_behind.version} went back to {target}. Choose {same}, or another version "
                "that `eo checkpoints` shows as live."
            )
        version = same


def refuse_unkept(head: LedgerEntry, version: int) -> None:
    """Return if the ledger that ends in ``head`` has, and keeps, ``version``.

    Raises:
        UnknownCheckpointError: there is no such version.
        PrunedError: it is below the floor.
    """
    if not START_VERSION <= version <= head.version:
        raise UnknownCheckpointError(
            f"Pipeline {head.pipeline!r} has the versions {head.floor} to {head.version}; there "
            f"is no version {version}. `eo checkpoints` lists them."
        )
    if (floor := head.identity.floor) is not None and version < floor.version:
        raise PrunedError(head.pipeline, version, floor.version, floor.since)


def _leaves(entry: LedgerEntry, version: int) -> bool:
    """True if ``entry`` is a rewind that left ``version`` behind."""
    target = entry.target
    return entry.operation is Operation.REWIND and target is not None and target < version


def newest_by(session: SinkSession, head: LedgerEntry, moment: datetime) -> int:
    """The newest version committed not after ``moment``, by bisection: O(log versions) looks.

    Raises:
        UnknownCheckpointError, PrunedError: there was none, or it is not kept any more.
    """
    if moment.tzinfo is None:
        raise GoingBackError(f"{moment.isoformat()} names no time zone; add one, Z for UTC")
    low, high = head.floor, head.version + 1
    while low < high:
        middle = (low + high) // 2
        entry = session.entry(middle)
        if entry is not None and entry.committed_at is not None and entry.committed_at <= moment:
            low = middle + 1
        else:
            high = middle
    if low == head.floor and (floor := head.identity.floor) is not None:
        raise PrunedError(head.pipeline, f"of {moment.isoformat()}", *astuple(floor))
    if low == START_VERSION:
        raise UnknownCheckpointError(
            f"Pipeline {head.pipeline!r} did not exist at {moment.isoformat()}: its first version "
            "was committed later."
        )
    return low - 1


def ranges_since(
    target: LedgerEntry, head: LedgerEntry, later: Sequence[LedgerEntry]
) -> tuple[OffsetRange, ...]:
    """What is read again when reading goes on from ``target``, up to where ``head`` stands.

    ``later`` are the entries after ``target``. A partition found later begins where it was first
    read. One whose topic was replaced since, or that was put aside, is named by an empty range at
    least, so that the check finds it.
    """
    ranges = {r.topic_partition: r for r in spans(checkpoints(later))}
    for tp, start in target.offsets.items():
        read_to = ranges[tp].end if tp in ranges else start
        # a topic that was replaced may stand below where the old one stood
        reached = max(start, read_to, head.offsets.get(tp, start))
        replaced = head.topic_ids.get(tp.topic) != target.topic_ids.get(tp.topic)
        if reached > start or replaced or tp not in head.offsets:
            ranges[tp] = OffsetRange(tp.topic, tp.partition, start, reached)
    return tuple(sorted(ranges.values()))


def first_topic_ids(entries: Sequence[LedgerEntry]) -> dict[str, str]:
    """The UUIDs of the topics that ``entries``, oldest first, read; the oldest of each counts."""
    topic_ids: dict[str, str] = {}
    for entry in reversed(entries):
        topic_ids |= entry.topic_ids
    return topic_ids


def check_rereading(
    steps: Steps,
    operation: str,
    ranges: Iterable[OffsetRange],
    topic_ids: Mapping[str, str],
    found: Sequence[Checkpoint],
    *,
    accept_compacted: bool,
    target: LedgerEntry | None = None,
) -> tuple[str, ...]:
    """Warnings about reading ``ranges`` again; see :meth:`Rereading.check`, also for errors.

    ``target`` is the entry that reading would go on from, if any.
    """
    wanted = list(ranges)
    if not wanted:
        return ()
    cluster = validated(steps.admin.cluster(), target, steps.admin.logs)
    check = Rereading(steps.pipeline, steps.source, steps.admin, cluster)
    return check.check(operation, wanted, topic_ids, found, accept_compacted=accept_compacted)
