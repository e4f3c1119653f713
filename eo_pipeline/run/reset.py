"""Reset, for development: all one pipeline has is dropped, and its next run starts anew.

No ledger version remains to tell of it: this is not a way to go back (a rewind is), nor one past a
loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.plans import OpenSteps, counted
from eo_pipeline.run.targets import refuse_stale
from eo_pipeline.staging.attempt import Attempt


@dataclass(frozen=True, kw_only=True)
class ResetPlan:
    """What would be dropped, a line each; ``head`` is ``None`` where there is no ledger."""

    pipeline: str
    head: LedgerEntry | None
    drops: tuple[str, ...]
    open_steps: OpenSteps = field(repr=False, compare=False)

    def __str__(self) -> str:
        stands = f"at version {self.head.version}" if self.head else "without a ledger"
        return f"reset of {self.pipeline}, {stands}: drops {', '.join(self.drops) or 'nothing'}"

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "pipeline": self.pipeline,
            "operation": "reset",
            "head": self.head.version if self.head else None,
            "drops": list(self.drops),
        }

    def apply(self) -> None:
        """Drop it: first what is in the store, then what is staged.

        Raises:
            StalePlanError: the ledger has moved on since; nothing was dropped.
            SinkError: the store did not do it; what is staged is still there.
        """
        with self.open_steps() as steps:
            head, staging = steps.session.head(), steps.recovery.staging
            refuse_stale(self.pipeline, self.head, head)
            steps.session.reset(dry_run=False)
            for attempt in _staged(steps, head):
                attempt.delete()
            staging.witnesses.forget(steps.recovery.witnesses(head))
            staging.failures.forget()


def plan_reset(open_steps: OpenSteps) -> ResetPlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_reset`."""
    with open_steps() as steps:
        head = steps.session.head()
        return ResetPlan(
            pipeline=steps.pipeline,
            open_steps=open_steps,
            head=head,
            drops=(*steps.session.reset(dry_run=True), *_counted(_staged(steps, head))),
        )


def _staged(steps: Steps, head: LedgerEntry | None) -> list[Attempt]:
    """At this ledger, and at those that staging saw in this very place before."""
    seen = {each.ledger_id for each in steps.recovery.witnesses(head)}
    ledgers = filter(None, {*seen, head.ledger_id if head else None})
    return [each for ledger in ledgers for each in steps.recovery.staging.attempts_at(ledger)]


def _counted(attempts: list[Attempt]) -> list[str]:
    return [counted(len(attempts), "staged attempt")] if attempts else []
