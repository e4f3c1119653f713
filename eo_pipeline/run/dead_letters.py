"""Records that were set aside: which checkpoints hold some, what they are, and a second chance."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from eo_pipeline.errors import NothingToDoError
from eo_pipeline.ledger.branch import Checkpoint, checkpoints
from eo_pipeline.ledger.chain import follow
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.run.plans import OpenSteps
from eo_pipeline.run.replay import ReplayPlan, plan_replay
from eo_pipeline.run.targets import kept_from, refuse_unkept

if TYPE_CHECKING:
    from eo_pipeline.run.checkpoint import Steps
    from eo_pipeline.sinks.protocol import SinkSession

#: Bytes of a value that are shown to a person.
_SHOWN_BYTES = 120


@dataclass(frozen=True)
class DeadLetter:
    """One record as it was set aside: ``checkpoint`` is the version it belongs to, ``value`` its
    first 120 bytes as text, None if the record had none.
    """

    checkpoint: int
    topic: str
    partition: int
    offset: int
    error: str
    value: str | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def with_dead_letters(steps: Steps) -> tuple[Checkpoint, ...]:
    """The live checkpoints whose rows stand beside records that were set aside, oldest first."""
    floor = kept_from(steps.session)
    live = checkpoints(list(follow(steps.session.history(floor), floor)))
    return tuple(each for each in live if each.counts.dead_letters)


def dead_letter_rows(session: SinkSession, since: int) -> Iterator[DeadLetter]:
    """What the sink holds of the checkpoints from ``since`` on.

    Raises:
        RefusedError: this sink cannot read them back.
        SinkUnavailableError: it does not answer.
    """
    for batch in session.dead_letter_values(since):
        for row in batch.to_pylist():
            value = row["value"]
            yield DeadLetter(
                checkpoint=row[CHECKPOINT_COLUMN],
                topic=row["topic"],
                partition=row["partition"],
                offset=row["offset"],
                error=row["error"],
                value=None if value is None else value[:_SHOWN_BYTES].decode(errors="replace"),
            )


def plan_redrive(
    open_steps: OpenSteps, versions: Collection[int] | None, *, accept_compacted: bool
) -> ReplayPlan:
    """See :meth:`eo_pipeline.run.changes.Changes.plan_redrive`."""
    with open_steps() as steps:
        pipeline = steps.pipeline
        found = {each.version for each in with_dead_letters(steps)}
        if versions and (head := steps.session.head()):
            refuse_unkept(head, min(versions))
    wanted = found if versions is None else set(versions)
    if without := sorted(wanted - found):
        named = ", ".join(map(str, without))
        raise NothingToDoError(
            f"Pipeline {pipeline!r}: no records of version {named} are set aside. "
            "`eo dead-letters list` shows the versions with some."
        )
    if not wanted:
        raise NothingToDoError(
            f"Pipeline {pipeline!r}: no record is set aside, so that there is nothing to redrive."
        )
    return plan_replay(
        open_steps, None, None, wanted, accept_compacted=accept_compacted, redrives=True
    )
