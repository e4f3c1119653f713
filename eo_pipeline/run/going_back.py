"""Rewind, replay and fork: checked, planned, then done as new ledger versions.

All three take the same way: look at the ledger, refuse whatever cannot be done before anything
changes, and only then publish. A rewind is one transaction, a replay one for each checkpoint; both
go through the sink's compare-and-swap like any run, so that of two that race one wins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from eo_pipeline.errors import (
    FencedError,
    GoingBackError,
    NothingToDoError,
    UnknownCheckpointError,
)
from eo_pipeline.ledger.branch import Checkpoint, checkpoints, live_branch, spans
from eo_pipeline.ledger.entry import (
    START_VERSION,
    Counts,
    EntryId,
    LedgerEntry,
    Operation,
    new_transaction_id,
)
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.plans import ChangePlan, ChangeReport
from eo_pipeline.sinks.protocol import SinkSession
from eo_pipeline.source.losses import accepted, losses_of
from eo_pipeline.source.rereading import Rereading

#: Versions named in a message before they are only counted.
_NAMED_MAX = 10


@dataclass(frozen=True)
class GoingBack:
    """Going back with one pipeline, over one connection to its sink."""

    steps: Steps
    accept_compacted: bool = False

    def head(self, expected: EntryId | None = None) -> LedgerEntry:
        """The head to go back from, with what a dead run had promised settled.

        Raises:
            FencedError: it is not ``expected``, which somebody looked at before.
            UnknownCheckpointError: the pipeline has no ledger yet.
        """
        head = self.steps.recover()
        if head is None:
            raise _no_ledger(self.steps.pipeline)
        if expected is not None and head.id != expected:
            raise FencedError(self.steps.pipeline, expected.version + 1, head.transaction_id)
        return head

    def seen_head(self) -> LedgerEntry:
        """The head as it is, changing nothing: for a plan that is only looked at."""
        head = self.steps.session.head()
        if head is None:
            raise _no_ledger(self.steps.pipeline)
        return head

    # Rewind.

    def plan_rewind(self, head: LedgerEntry, to: int | datetime) -> ChangePlan:
        """What a rewind to version ``to``, or to the newest one of that time, takes away.

        Raises:
            GoingBackError: one of its kinds.
            NothingToDoError: the head is there already.
            RefusedError: the sink cannot take these rows back.
        """
        target, later = find(self.steps.session, head, to)
        if target.id == head.id:
            raise NothingToDoError(
                f"Pipeline {head.pipeline!r} is at version {head.version} already; nothing was "
                "changed."
            )
        self.steps.session.check_going_back(self._rewind_entry(head, target, later, {}))
        again = _between(target, head, later)
        warnings = self._check(f"the rewind to {target.version}", again, [target, *later])
        found = checkpoints(later)
        return ChangePlan(head.pipeline, Operation.REWIND, head, target, found, again, warnings)

    def rewind(self, plan: ChangePlan, remarks: Mapping[str, str]) -> ChangeReport:
        """Do it: one transaction that removes the rows and moves the ledger."""
        assert plan.target is not None
        later = list(self.steps.session.history(plan.target.version + 1))
        entry = self._rewind_entry(plan.head, plan.target, later, remarks)
        done = self.steps.publish_alone(entry)
        self.steps.recovery.tidy(done)
        return ChangeReport(plan, (done,))

    def _rewind_entry(
        self,
        head: LedgerEntry,
        target: LedgerEntry,
        later: Sequence[LedgerEntry],
        remarks: Mapping[str, str],
    ) -> LedgerEntry:
        removed = checkpoints(later)
        rows = sum(each.counts.rows for each in removed)
        return replace(
            head.child(Operation.REWIND, self.steps.run_id, target.offsets),
            topic_ids=target.topic_ids,
            target=target.version,
            counts=Counts(rows_total=head.counts.rows_total - rows),
            details={**remarks, "rows_removed": rows, "checkpoints_removed": len(removed)},
        )

    # Replay.

    def plan_replay(self, head: LedgerEntry, versions: Collection[int]) -> ChangePlan:
        """What replaying exactly ``versions`` replaces; see :meth:`between` for a stretch.

        Raises:
            GoingBackError: one of its kinds.
            RefusedError: the sink cannot replace these rows.
        """
        found = self._replayable(head, versions)
        for each in found:
            self.steps.session.check_going_back(self._replay_entry(head, each, {}))
        again = spans(found)
        named = _named([each.version for each in found])
        warnings = self._check(f"the replay of {named}", again, [each.entry for each in found])
        return ChangePlan(head.pipeline, Operation.REPLAY, head, None, found, again, warnings)

    def between(self, head: LedgerEntry, first: int | None, last: int | None) -> list[int]:
        """The versions from ``first`` to ``last`` (or ``first`` alone) that read something.

        Raises:
            UnknownCheckpointError: one of the two does not stand.
            GoingBackError: there is nothing to replay between them.
        """
        if first is None:
            raise GoingBackError("no checkpoint was named to be replayed")
        last = first if last is None else last
        if first > last:
            raise GoingBackError(f"a replay from {first} to {last} goes backwards")
        _, later = find(self.steps.session, head, first)
        find(self.steps.session, head, last)
        found = [each.version for each in self._standing(first, later) if each.version <= last]
        if not found:
            raise GoingBackError(
                f"Pipeline {head.pipeline!r}: no checkpoint from {first} to {last} read anything; "
                "there is nothing to replay."
            )
        return found

    def replay(self, plan: ChangePlan, remarks: Mapping[str, str]) -> ChangeReport:
        """Do it: one transaction for each checkpoint; those that are done stay done.

        Raises:
            EoPipelineError: one of its kinds; the checkpoints reported so far were replayed.
        """
        head, done = plan.head, []
        for checkpoint in plan.checkpoints:
            cluster = self.steps.admin.cluster()
            entry = self._replay_entry(head, checkpoint, remarks)
            head = self.steps.checkpoint(head, entry, cluster, checkpoint.entry.counts)
            self.steps.recovery.tidy(head)
            done.append(head)
        return ChangeReport(plan, tuple(done))

    def _replay_entry(
        self, head: LedgerEntry, checkpoint: Checkpoint, remarks: Mapping[str, str]
    ) -> LedgerEntry:
        return replace(
            head.child(Operation.REPLAY, self.steps.run_id, head.offsets),
            ranges=checkpoint.entry.ranges,
            target=checkpoint.version,
            counts=Counts(rows_total=head.counts.rows_total - checkpoint.counts.rows),
            details=dict(remarks),
        )

    def _replayable(self, head: LedgerEntry, versions: Collection[int]) -> tuple[Checkpoint, ...]:
        wanted = set(versions)
        if not wanted:
            raise GoingBackError("no checkpoint was named to be replayed")
        for version in sorted(wanted):
            find(self.steps.session, head, version)
        history = list(self.steps.session.history(min(wanted)))
        found = tuple(each for each in checkpoints(history) if each.version in wanted)
        without = sorted(wanted - {each.version for each in found})
        if without:
            raise UnknownCheckpointError(
                f"Pipeline {head.pipeline!r}: version {_named(without)} read nothing and holds no "
                "rows, so that there is nothing to replay. `eo checkpoints` lists those that do."
            )
        return found

    def _standing(self, first: int, later: Sequence[LedgerEntry]) -> tuple[Checkpoint, ...]:
        entry = self.steps.session.entry(first)
        return checkpoints([*([entry] if entry else []), *later])

    # Fork.

    def plan_fork(self, head: LedgerEntry, at: int | datetime) -> ChangePlan:
        """What a new pipeline that begins where version ``at`` stood would read again.

        Raises:
            GoingBackError: one of its kinds.
        """
        target, later = find(self.steps.session, head, at)
        again = _between(target, head, later)
        read = {r.topic_partition for r in again}
        stands = (
            OffsetRange(tp.topic, tp.partition, offset, offset)
            for tp, offset in target.offsets.items()
            if tp not in read and self.steps.source.matches(tp.topic)
        )
        operation = f"the fork at {target.version}"
        warnings = self._check(operation, [*again, *stands], [target, *later])
        found = checkpoints(later)
        return ChangePlan(head.pipeline, Operation.FORK, head, target, found, again, warnings)

    def _check(
        self, operation: str, ranges: Sequence[OffsetRange], entries: Sequence[LedgerEntry]
    ) -> tuple[str, ...]:
        """Warnings about reading ``ranges`` again, which ``entries``, oldest first, read."""
        if not ranges:
            return ()
        topic_ids: dict[str, str] = {}
        for entry in reversed(entries):
            topic_ids |= entry.topic_ids  # the oldest UUID of a topic counts
        steps = self.steps
        check = Rereading(steps.pipeline, steps.source, steps.admin, steps.admin.cluster())
        return check.check(operation, ranges, topic_ids, accept_compacted=self.accept_compacted)


def _between(
    target: LedgerEntry, head: LedgerEntry, later: Sequence[LedgerEntry]
) -> tuple[OffsetRange, ...]:
    """What is read again when reading goes on from ``target``, up to where ``head`` stands.

    A partition found later begins where it was first read. One whose topic was replaced since is
    named by an empty range at least, so that the check finds it.
    """
    ranges = {r.topic_partition: r for r in spans(checkpoints(later))}
    for tp, start in target.offsets.items():
        reached = max(ranges[tp].end if tp in ranges else start, head.offsets.get(tp, start))
        replaced = head.topic_ids.get(tp.topic) != target.topic_ids.get(tp.topic)
        if reached > start or replaced:
            ranges[tp] = OffsetRange(tp.topic, tp.partition, start, reached)
    return tuple(sorted(ranges.values()))


def begin_fork(steps: Steps, plan: ChangePlan, remarks: Mapping[str, str]) -> LedgerEntry:
    """Write the first entry of a fork; ``steps`` are those of the new pipeline.

    Raises:
        GoingBackError: it has a ledger already.
    """
    assert plan.target is not None
    head = steps.recover()
    if head is not None:
        raise GoingBackError(
            f"Pipeline {steps.pipeline!r} has a ledger already, at version {head.version}. Nothing "
            "was changed; fork under another name."
        )
    origin = {
        "pipeline": plan.pipeline,
        "ledger_id": plan.target.ledger_id,
        "version": plan.target.version,
        "transaction_id": plan.target.transaction_id,
    }
    entry = LedgerEntry(
        pipeline=steps.pipeline,
        ledger_id=new_transaction_id(),
        version=START_VERSION,
        transaction_id=new_transaction_id(),
        parent=None,
        operation=Operation.FORK,
        offsets=plan.target.offsets,
        topic_ids=plan.target.topic_ids,
        run_id=steps.run_id,
        details={**remarks, "forked_from": origin},
    )
    return steps.publish_alone(entry)


def accept_loss(
    steps: Steps, topics: Collection[str] | None, remarks: Mapping[str, str]
) -> LedgerEntry:
    """See :meth:`eo_pipeline.pipeline.Pipeline.accept_loss`."""
    head = steps.recover()
    if head is None:
        raise _no_ledger(steps.pipeline)
    cluster = steps.admin.cluster()
    found = losses_of(head, cluster, steps.source)
    chosen = {tp: loss for tp, loss in found.items() if topics is None or tp.topic in topics}
    if not chosen:
        where = f"in {', '.join(sorted(topics))} " if topics else ""
        raise NothingToDoError(
            f"Pipeline {steps.pipeline!r}: Kafka {where}holds everything that comes next; there is "
            "no loss to accept."
        )
    return steps.publish_alone(accepted(head, chosen, cluster, steps.run_id, remarks))


def find(
    session: SinkSession, head: LedgerEntry, wanted: int | datetime
) -> tuple[LedgerEntry, list[LedgerEntry]]:
    """The live entry ``wanted`` names, and all entries after it, oldest first.

    A moment names the newest version committed by then that still stands.

    Raises:
        UnknownCheckpointError: there is none, or a rewind left it behind.
    """
    moment = isinstance(wanted, datetime)
    version = _newest_by(session, head, wanted) if isinstance(wanted, datetime) else wanted
    if not START_VERSION <= version <= head.version:
        raise UnknownCheckpointError(
            f"Pipeline {head.pipeline!r} has the versions {START_VERSION} to {head.version}; there "
            f"is no version {version}. `eo checkpoints` lists them."
        )
    while True:
        entries = list(session.history(version))
        if entries[0] in live_branch(entries):
            return entries[0], entries[1:]
        left_behind = next(e for e in entries if e.target is not None and _kills(e, version))
        if not moment:
            raise UnknownCheckpointError(
                f"Pipeline {head.pipeline!r}: version {version} no longer stands: version "
                f"{left_behind.version} went back to {left_behind.target}. Choose "
                f"{left_behind.target}, or another version that `eo checkpoints` shows as live."
            )
        version = left_behind.target or START_VERSION


def _kills(entry: LedgerEntry, version: int) -> bool:
    target = entry.target
    return entry.operation is Operation.REWIND and target is not None and target < version


def _newest_by(session: SinkSession, head: LedgerEntry, moment: datetime) -> int:
    """The newest version committed not after ``moment``, by bisection: O(log versions) looks."""
    if moment.tzinfo is None:
        raise GoingBackError(f"{moment.isoformat()} names no time zone; add one, Z for UTC")
    low, high = START_VERSION, head.version + 1
    while low < high:
        middle = (low + high) // 2
        entry = session.entry(middle)
        if entry is not None and entry.committed_at is not None and entry.committed_at <= moment:
            low = middle + 1
        else:
            high = middle
    if low == START_VERSION:
        raise UnknownCheckpointError(
            f"Pipeline {head.pipeline!r} did not exist at {moment.isoformat()}: its first version "
            "was committed later."
        )
    return low - 1


def _no_ledger(pipeline: str) -> UnknownCheckpointError:
    return UnknownCheckpointError(
        f"Pipeline {pipeline!r} has no ledger yet: nothing was ever committed. Run it first."
    )


def _named(versions: Sequence[int]) -> str:
    named = ", ".join(map(str, versions[:_NAMED_MAX]))
    more = len(versions) - _NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named
