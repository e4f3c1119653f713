"""Replay: the ranges of checkpoints are read again with today's transform, their rows replaced.

One transaction and one ledger version for each checkpoint. Offsets do not move.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from eo_pipeline.errors import GoingBackError, NothingToDoError, UnknownCheckpointError, some_of
from eo_pipeline.ledger.entry import (
    CHECKPOINT_COLUMN,
    READ_AS,
    REDRIVE,
    LedgerEntry,
    Operation,
)
from eo_pipeline.ledger.history import Checkpoint, checkpoints, follow, spans
from eo_pipeline.operations.change_plan import (
    OpenContext,
    RereadingPlan,
    check_rereading,
    current_head,
    find_live_entry,
    first_topic_ids,
    kept_from,
    refuse_stale,
    refuse_unkept,
)
from eo_pipeline.runs.checkpoint import RunContext, commit, prepare, recover

if TYPE_CHECKING:
    from eo_pipeline.sinks.session import SinkSession

#: Versions named in a message before they are only counted.
_NAMED_MAX = 10


@dataclass(frozen=True, kw_only=True)
class ReplayPlan(RereadingPlan):
    """A replay of ``checkpoints``, oldest first. Those committed before an error stay replayed."""

    operation: ClassVar = Operation.REPLAY

    #: whether its purpose is the dead letters
    redrives: bool = False

    def __str__(self) -> str:
        return (
            f"replay in {self.pipeline} at version {self.head.version}: reads again and replaces "
            f"{self._rows_of_checkpoints()}"
        )

    def check(self, context: RunContext) -> tuple[str, ...]:
        return _check(context, self.head, self.checkpoints, accept_compacted=self.accept_compacted)

    def _apply(self, context: RunContext, remarks: Mapping[str, str]) -> tuple[LedgerEntry, ...]:
        refuse_stale(self.pipeline, self.head, recover(context))
        self.check(context)
        head = self.head
        done: list[LedgerEntry] = []
        for checkpoint in self.checkpoints:
            cluster = context.admin.cluster()
            context.say(
                f"replaying checkpoint {checkpoint.version}, "
                f"{len(done) + 1} of {len(self.checkpoints)}"
            )
            entry = replay_entry(head, checkpoint, context.run_id, remarks, redrives=self.redrives)
            head = commit(context, prepare(context, head, entry, cluster, checkpoint.entry.counts))
            context.recovery.delete_decided_attempts(head)
            done.append(head)
        return tuple(done)


def plan_replay(
    open_context: OpenContext,
    first: int | None,
    last: int | None,
    versions: Collection[int] | None,
    *,
    accept_compacted: bool,
    redrives: bool = False,
) -> ReplayPlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_replay`."""
    with open_context() as context:
        head = current_head(context.session)
        selected = _find(
            context.session, head, versions or _stretch(context.session, head, first, last)
        )
        plan = ReplayPlan(
            pipeline=context.pipeline,
            open_context=open_context,
            head=head,
            checkpoints=selected,
            ranges=spans(selected),
            topic_ids=first_topic_ids([checkpoint.entry for checkpoint in selected]),
            accept_compacted=accept_compacted,
            redrives=redrives,
        )
        return replace(plan, warnings=(*plan.check(context), _as_of_ends(selected, head)))


def _as_of_ends(selected: Sequence[Checkpoint], head: LedgerEntry) -> str:
    first = selected[0].version
    return (
        f"After the replay `eo as-of` can no longer show versions {first} to {head.version} as "
        "they were: the present rows of these checkpoints are replaced."
    )


def check_replay(context: RunContext, head: LedgerEntry, versions: Collection[int]) -> None:
    """Return if exactly ``versions`` could be replayed on top of ``head``.

    Raises:
        GoingBackError, RefusedError: they cannot.
    """
    _check(context, head, _find(context.session, head, versions), accept_compacted=False)


def _stretch(
    session: SinkSession, head: LedgerEntry, first: int | None, last: int | None
) -> list[int]:
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
    entry, later = find_live_entry(session, head, first)
    find_live_entry(session, head, last)
    versions = [
        checkpoint.version
        for checkpoint in checkpoints([entry, *later])
        if checkpoint.version <= last
    ]
    if not versions:
        raise GoingBackError(
            f"Pipeline {head.pipeline!r}: no checkpoint from {first} to {last} read anything; "
            "there is nothing to replay."
        )
    return versions


def _find(
    session: SinkSession, head: LedgerEntry, versions: Collection[int]
) -> tuple[Checkpoint, ...]:
    """The checkpoints of exactly ``versions``, oldest first.

    Raises:
        UnknownCheckpointError: one of them does not stand, or read nothing.
    """
    wanted = set(versions)
    for version in sorted(wanted):
        find_live_entry(session, head, version)
    since = min(wanted)
    history = list(follow(session.history(since), since))
    selected = tuple(
        checkpoint for checkpoint in checkpoints(history) if checkpoint.version in wanted
    )
    without = sorted(wanted - {checkpoint.version for checkpoint in selected})
    if without:
        raise UnknownCheckpointError(
            f"Pipeline {head.pipeline!r}: version {some_of(without, _NAMED_MAX)} read nothing and "
            "holds no rows, so that there is nothing to replay. `eo checkpoints` lists those that "
            "do."
        )
    return selected


def _check(
    context: RunContext,
    head: LedgerEntry,
    selected: Sequence[Checkpoint],
    *,
    accept_compacted: bool,
) -> tuple[str, ...]:
    """Return the warnings, if the sink can replace these rows and Kafka can be read again."""
    for checkpoint in selected:
        context.session.check_going_back(replay_entry(head, checkpoint, context.run_id, {}))
    return check_rereading(
        context,
        f"the replay of {some_of([checkpoint.version for checkpoint in selected], _NAMED_MAX)}",
        spans(selected),
        first_topic_ids([checkpoint.entry for checkpoint in selected]),
        selected,
        accept_compacted=accept_compacted,
    )


def replay_entry(
    head: LedgerEntry,
    checkpoint: Checkpoint,
    run_id: str,
    remarks: Mapping[str, str],
    *,
    redrives: bool = False,
) -> LedgerEntry:
    """Return the entry of a replay of ``checkpoint`` on top of ``head``, before the read."""
    details: dict[str, Any] = dict(remarks)
    if checkpoint.written.version != checkpoint.version:
        details[READ_AS] = checkpoint.written.version
    if redrives:
        details[REDRIVE] = True
    return replace(
        head.child(Operation.REPLAY, run_id, head.offsets),
        ranges=checkpoint.entry.ranges,
        topic_ids={**checkpoint.entry.topic_ids, **head.topic_ids},
        target=checkpoint.version,
        counts=head.counts.totals(checkpoint.counts),
        details=details,
    )


#: Bytes of a value that are shown.
_SHOWN_BYTES = 120


@dataclass(frozen=True)
class DeadLetter:
    """One dead letter: ``checkpoint`` is its version, ``value`` the first 120 bytes as text, None
    if the record had no value; ``table`` the one that did not take it, of a pipeline with several.
    """

    checkpoint: int
    topic: str
    partition: int
    offset: int
    error: str
    value: str | None
    table: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values; a ``table`` only if there are several."""
        values = asdict(self)
        if self.table is None:
            del values["table"]
        return values


def with_dead_letters(session: SinkSession) -> tuple[Checkpoint, ...]:
    """Return the live checkpoints with dead letters, oldest first."""
    floor = kept_from(session)
    live = checkpoints(list(follow(session.history(floor), floor)))
    return tuple(checkpoint for checkpoint in live if checkpoint.counts.dead_letters)


def dead_letter_rows(session: SinkSession, since: int) -> Iterator[DeadLetter]:
    """Return the sink's dead letters of the checkpoints from ``since`` on.

    Raises:
        RefusedError: this sink cannot read them back.
        SinkUnavailableError: it does not answer.
    """
    for table, of_table in session.members.items() or [(None, session)]:
        for batch in of_table.dead_letter_values(since):
            for row in batch.to_pylist():
                value = row["value"]
                yield DeadLetter(
                    checkpoint=row[CHECKPOINT_COLUMN],
                    topic=row["topic"],
                    partition=row["partition"],
                    offset=row["offset"],
                    error=row["error"],
                    value=None if value is None else value[:_SHOWN_BYTES].decode(errors="replace"),
                    table=table,
                )


def plan_redrive(
    open_context: OpenContext, versions: Collection[int] | None, *, accept_compacted: bool
) -> ReplayPlan:
    """See :meth:`eo_pipeline.pipeline.Changes.plan_redrive`."""
    with open_context() as context:
        pipeline = context.pipeline
        with_letters = {checkpoint.version for checkpoint in with_dead_letters(context.session)}
        if versions and (head := context.session.head()):
            refuse_unkept(head, min(versions))
    wanted = with_letters if versions is None else set(versions)
    if without := sorted(wanted - with_letters):
        named = ", ".join(map(str, without))
        raise NothingToDoError(
            f"Pipeline {pipeline!r}: version {named} has no dead letters. "
            "`eo dead-letters list` shows the versions that have."
        )
    if not wanted:
        raise NothingToDoError(f"Pipeline {pipeline!r}: there are no dead letters to redrive.")
    return plan_replay(
        open_context, None, None, wanted, accept_compacted=accept_compacted, redrives=True
    )
