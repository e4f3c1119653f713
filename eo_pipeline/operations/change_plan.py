"""Plans of changes, their application, and the checks they share.

Rewind, replay, fork, accept_loss and adopt have plans of their own. Making a plan makes every check
and changes nothing; applying it makes the checks again.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import astuple, dataclass, field
from datetime import datetime, timedelta
from typing import Any, ClassVar, Protocol

from eo_pipeline.errors import (
    CompactedError,
    GoingBackError,
    Loss,
    OpenTransactionError,
    PrunedError,
    RangesGoneError,
    StalePlanError,
    UnknownCheckpointError,
)
from eo_pipeline.kafka.admin import KafkaAdmin
from eo_pipeline.kafka.losses import describe_loss, lost_ranges
from eo_pipeline.kafka.marks import altered_ranges, validated
from eo_pipeline.kafka.partitions import Cluster
from eo_pipeline.kafka.source import KafkaSource, LossKind
from eo_pipeline.ledger.entry import START_VERSION, LedgerEntry, Operation
from eo_pipeline.ledger.history import (
    Checkpoint,
    Damage,
    checkpoints,
    follow,
    live_branch,
    records_per_second,
    spans,
)
from eo_pipeline.ledger.offsets import OffsetRange, ranges_to_json
from eo_pipeline.runs.checkpoint import RunContext
from eo_pipeline.runs.report import OnCheckpoint
from eo_pipeline.sinks.session import LATER_ROWS, SinkSession
from eo_pipeline.spark import SparkProvider


class OpenContext(Protocol):
    """Open a context over one pipeline's sink, and close it at the end."""

    def __call__(
        self,
        run_id: str | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        spark: SparkProvider | None = None,
        operation: str | None = None,
    ) -> AbstractContextManager[RunContext]:
        """Arguments as of :meth:`ChangePlan.apply`; ``operation`` names the run to observers, None:
        the run has none.
        """


@dataclass(frozen=True, kw_only=True)
class ChangePlan(ABC):
    """A change that passed every check; nothing has changed yet. ``str()`` describes it."""

    operation: ClassVar[Operation]

    pipeline: str
    open_context: OpenContext = field(repr=False, compare=False)

    def apply(
        self,
        *,
        reason: str = "",
        asked_by: str = "",
        run_id: str | None = None,
        on_checkpoint: OnCheckpoint | None = None,
        spark: SparkProvider | None = None,
    ) -> ChangeReport:
        """Make the change, exactly this one, on condition that the ledger has not moved since.

        What a run that died had promised is committed first; if there was such a promise the
        ledger has moved, and the plan must be made anew.

        Args:
            reason: kept in the ledger; so is asked_by.
            run_id: stored with every entry; made up if absent.
            on_checkpoint: called after each commit, those of a dead run's promises included.
            spark: a session to use instead of the pipeline's own; called only if needed.

        Raises:
            StalePlanError: the ledger has moved on; nothing was changed.
            FencedError: a run was faster at the last moment.
            EoPipelineError: another of its kinds; reported commits stay.
        """
        with self.open_context(run_id, on_checkpoint, spark, self.operation.value) as context:
            entries = self._apply(context, {"reason": reason, "asked_by": asked_by})
        return ChangeReport(self, entries)

    @abstractmethod
    def _apply(self, context: RunContext, remarks: Mapping[str, str]) -> tuple[LedgerEntry, ...]:
        """Make the change. Returns the committed entries, oldest first."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Plain values."""


@dataclass(frozen=True, kw_only=True)
class RereadingPlan(ChangePlan):
    """A change after which offsets are read again: a rewind, a replay or a fork.

    ``head`` is the ledger's head it was planned from. ``checkpoints`` are those whose rows leave
    (rewind) or are replaced (replay), oldest first; for a fork those that the new pipeline reads
    again. ``ranges`` will be read again, of topics that had the UUIDs ``topic_ids``. ``warnings``
    were accepted.
    """

    head: LedgerEntry
    checkpoints: tuple[Checkpoint, ...]
    ranges: tuple[OffsetRange, ...]
    topic_ids: Mapping[str, str] = field(repr=False)
    accept_compacted: bool = False
    warnings: tuple[str, ...] = ()

    @abstractmethod
    def check(self, context: RunContext) -> tuple[str, ...]:
        """Check with sink and Kafka that the change is possible. Returns the warnings.

        Raises:
            RefusedError: the sink cannot take or replace these rows.
            RangesGoneError, CompactedError: Kafka cannot be read again.
        """

    @property
    def target_version(self) -> int | None:
        """The version gone back to, or begun from; None where there is no single one."""
        return None

    @property
    def rows(self) -> int:
        """Rows that leave, are replaced, or will be written again."""
        return sum(checkpoint.counts.rows for checkpoint in self.checkpoints)

    @property
    def records(self) -> int:
        """Kafka records to read again, by the counts of the checkpoints."""
        return sum(checkpoint.entry.counts.records for checkpoint in self.checkpoints)

    @property
    def seconds(self) -> float | None:
        """Estimated time of reading again, by these checkpoints; None: not known."""
        speed = records_per_second(self.checkpoints)
        return self.records / speed if speed else None

    def to_json(self) -> dict[str, Any]:
        """Plain values; seconds are rounded to tenths."""
        return {
            "pipeline": self.pipeline,
            "operation": self.operation.value,
            "head": self.head.version,
            "target": self.target_version,
            "checkpoints": [
                {
                    "version": checkpoint.version,
                    "rows": checkpoint.counts.rows,
                    "records": checkpoint.entry.counts.records,
                    "ranges": ranges_to_json(checkpoint.entry.ranges),
                }
                for checkpoint in self.checkpoints
            ],
            "rows": self.rows,
            "records": self.records,
            "ranges": ranges_to_json(self.ranges),
            "seconds": None if self.seconds is None else round(self.seconds, 1),
            "warnings": list(self.warnings),
        }

    def _rows_of_checkpoints(self) -> str:
        """``200 rows of 2 checkpoints``."""
        return f"{counted(self.rows, 'row')} of {counted(len(self.checkpoints), 'checkpoint')}"


@dataclass(frozen=True)
class ChangeReport:
    """The applied ``plan`` and its ledger ``entries``, oldest first."""

    plan: ChangePlan
    entries: tuple[LedgerEntry, ...]

    def to_json(self) -> dict[str, Any]:
        """The plan's values, and ``entries``."""
        return {**self.plan.to_json(), "entries": [entry.to_json() for entry in self.entries]}


def counted(count: int, noun: str) -> str:
    """``1 row``, ``2 rows``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


#: Time that records must still stay in Kafka, so that retention does not overtake the read.
RETENTION_MARGIN = timedelta(hours=1)


@dataclass(frozen=True)
class Rereading:
    """Check of ranges to read again, for one pipeline and one state of the cluster."""

    pipeline: str
    source: KafkaSource
    admin: KafkaAdmin
    cluster: Cluster

    def check(
        self,
        operation: str,
        ranges: Sequence[OffsetRange],
        topic_ids: Mapping[str, str],
        selected: Sequence[Checkpoint] = (),
        *,
        accept_compacted: bool,
    ) -> tuple[str, ...]:
        """Return warnings about ``ranges``, if all of them can be read again.

        Args:
            operation: in words, for errors: ``the rewind to 3``.
            ranges: to be read again; an empty one requires only that a read can start there.
            topic_ids: the topics' UUIDs when the ranges were first read.
            selected: the checkpoints that read them.
            accept_compacted: a compacted topic is a warning instead of an error.

        Raises:
            RangesGoneError: they are gone, will be soon, or belong to another or no topic; or
                other records have their offsets.
            OpenTransactionError: they can be read once a transaction ends.
            CompactedError: compaction may have taken some of them.
            SourceUnavailableError: Kafka does not answer, or does not show its topics' settings.
        """
        lost = self._unsubscribed(ranges)
        lost = lost or lost_ranges(ranges, topic_ids, self.cluster) or self._altered(selected)
        lost = lost or self._soon_gone(ranges)
        if lost:
            raise RangesGoneError(self.pipeline, operation, lost)
        self._refuse_unstable(operation, ranges)
        return self._compacted(operation, ranges, accept=accept_compacted)

    def _unsubscribed(self, ranges: Sequence[OffsetRange]) -> list[Loss]:
        cause = "the pipeline no longer reads this topic, and would not read it again"
        return [
            Loss(r.topic, r.partition, r.start, None, None, cause)
            for r in ranges
            if not self.source.matches(r.topic)
        ]

    def _altered(self, selected: Sequence[Checkpoint]) -> list[Loss]:
        altered = altered_ranges(selected, self.cluster, self.admin.logs)
        return [
            describe_loss(r.topic_partition, LossKind.TRUNCATED, r.start, self.cluster)
            for _, r in altered
        ]

    def _refuse_unstable(self, operation: str, ranges: Sequence[OffsetRange]) -> None:
        for r in ranges:
            stable = self.cluster.bounds[r.topic_partition].end
            if r.end > stable:
                where = r.topic, r.partition, r.end, stable
                raise OpenTransactionError(self.pipeline, operation, *where)

    def _soon_gone(self, ranges: Sequence[OffsetRange]) -> list[Loss]:
        partitions = [r.topic_partition for r in ranges if r.span]
        floors = self.admin.offsets_kept_for(partitions, RETENTION_MARGIN)
        lost = []
        for r in ranges:
            floor = floors.get(r.topic_partition)
            if floor is not None and r.span and r.start < floor:
                bounds = self.cluster.bounds[r.topic_partition]
                cause = f"retention may delete offsets below {floor} within {RETENTION_MARGIN}"
                lost.append(
                    Loss(r.topic, r.partition, r.start, bounds.beginning, bounds.end, cause)
                )
        return lost

    def _compacted(
        self, operation: str, ranges: Sequence[OffsetRange], *, accept: bool
    ) -> tuple[str, ...]:
        compacted = sorted(self.admin.compacted({r.topic for r in ranges if r.span}))
        if not compacted:
            return ()
        what = f"{', '.join(compacted)}: compaction may have taken records, so that fewer come back"
        if accept:
            return (what,)
        raise CompactedError(
            f"Pipeline {self.pipeline!r}: {operation} would read a compacted topic again. {what}. "
            "Nothing was changed. If that is what you want, say so: accept_compacted=True, "
            "`--accept-compacted`."
        )


#: Operations that remove or replace rows.
_GOES_BACK = frozenset({Operation.REWIND, Operation.REPLAY, Operation.ADOPT})


def current_head(session: SinkSession) -> LedgerEntry:
    """Return the head, if it is as it was committed; nothing is changed.

    Raises:
        UnknownCheckpointError: the pipeline has no ledger yet.
        LedgerDamagedError: it, or its parent, is not what was committed.
    """
    head = session.verified(unverified_head(session))
    assert head is not None
    return head


def unverified_head(session: SinkSession) -> LedgerEntry:
    """Return the head without a check of its content.

    Raises:
        UnknownCheckpointError: the pipeline has no ledger yet.
    """
    head = session.head()
    if head is None:
        raise UnknownCheckpointError(
            f"Pipeline {session.pipeline!r} has no ledger yet: nothing was ever committed. Run it "
            "first."
        )
    return head


def kept_from(session: SinkSession) -> int:
    """Return the first version that the ledger keeps."""
    head = session.head()
    return head.floor if head else START_VERSION


def newest_entries(session: SinkSession, count: int) -> list[LedgerEntry]:
    """Return the last ``count`` entries, oldest first.

    Raises:
        LedgerDamagedError: one of them is missing or was changed.
    """
    head = session.verified(session.head())
    if head is None:
        return []
    since = max(head.floor, head.version + 1 - count)
    return list(follow(session.history(since), since))


def later_rows(session: SinkSession) -> Iterator[Damage]:
    """Yield the version after the head as damage, if the table has rows of later versions."""
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
    """Return the error of a plan made at ``planned``, now that the ledger is at ``head``."""
    current = (head.version, head.transaction_id) if head else (None, None)
    return StalePlanError(pipeline, planned.version if planned else None, *current)


def look_again(session: SinkSession, head: LedgerEntry) -> tuple[int, bool]:
    """Return the newest version, and whether the ledger has gone back since ``head``."""
    newest, went_back = head.version, False
    for entry in session.history(head.version + 1):
        newest, went_back = entry.version, went_back or entry.operation in _GOES_BACK
    return newest, went_back


def find_live_entry(
    session: SinkSession, head: LedgerEntry, wanted: int | datetime
) -> tuple[LedgerEntry, list[LedgerEntry]]:
    """Return the live entry that ``wanted`` names, and all entries after it, oldest first.

    A moment names the newest live version committed by then.

    Raises:
        UnknownCheckpointError: there is none, or a rewind left it behind.
        PrunedError: it is not kept any more.
        LedgerDamagedError: it is missing, or an entry from there on is not what was committed.
    """
    is_moment = isinstance(wanted, datetime)
    version = newest_by(session, head, wanted) if isinstance(wanted, datetime) else wanted
    refuse_unkept(head, version)
    while True:
        entries = list(follow(session.history(version), version))
        if entries[0] in live_branch(entries):
            return entries[0], entries[1:]
        left_behind = next(entry for entry in entries[1:] if _leaves(entry, version))
        target = left_behind.target or START_VERSION
        # a rewind has its target's state, also if the target is not kept any more
        same = target if target >= head.floor else left_behind.version
        if not is_moment:
            raise UnknownCheckpointError(
                f"Pipeline {head.pipeline!r}: version {version} is no longer live: version "
                f"{left_behind.version} rewound to {target}. Choose {same}, or another version "
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
    """Return whether ``entry`` is a rewind that left ``version`` behind."""
    target = entry.target
    return entry.operation is Operation.REWIND and target is not None and target < version


def newest_by(session: SinkSession, head: LedgerEntry, moment: datetime) -> int:
    """Return the newest version committed by ``moment``, by bisection: O(log versions) reads.

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
    """Return the ranges that are read again when reading continues from ``target``, up to ``head``.

    ``later`` are the entries after ``target``. A partition found later begins where it was first
    read. One whose topic was replaced since, or that was put aside, has at least an empty range,
    so that the check covers it.
    """
    ranges = {r.topic_partition: r for r in spans(checkpoints(later))}
    for tp, start in target.offsets.items():
        read_to = ranges[tp].end if tp in ranges else start
        # a replaced topic may have lower offsets than the old one
        reached = max(start, read_to, head.offsets.get(tp, start))
        replaced = head.topic_ids.get(tp.topic) != target.topic_ids.get(tp.topic)
        if reached > start or replaced or tp not in head.offsets:
            ranges[tp] = OffsetRange(tp.topic, tp.partition, start, reached)
    return tuple(sorted(ranges.values()))


def first_topic_ids(entries: Sequence[LedgerEntry]) -> dict[str, str]:
    """Return the oldest UUID of each topic that ``entries``, oldest first, read."""
    topic_ids: dict[str, str] = {}
    for entry in reversed(entries):
        topic_ids |= entry.topic_ids
    return topic_ids


def check_rereading(
    context: RunContext,
    operation: str,
    ranges: Iterable[OffsetRange],
    topic_ids: Mapping[str, str],
    selected: Sequence[Checkpoint],
    *,
    accept_compacted: bool,
    target: LedgerEntry | None = None,
) -> tuple[str, ...]:
    """Return warnings about reading ``ranges`` again; see :meth:`Rereading.check`, also for errors.

    ``target`` is the entry from which reading would continue, if any.
    """
    wanted = list(ranges)
    if not wanted:
        return ()
    cluster = validated(context.admin.cluster(), target, context.admin.logs)
    check = Rereading(context.pipeline, context.source, context.admin, cluster)
    return check.check(operation, wanted, topic_ids, selected, accept_compacted=accept_compacted)
