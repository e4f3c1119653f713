"""Set aside: a promise in staging that cannot be read stops being one.

What it said is not known, so that nobody can keep it. Nothing is lost and nothing doubled: its
offsets are read again by the next run, and should whoever wrote the promise still commit it, of the
two one wins at the ledger. A promise that was kept is known by the ledger, and is not in the way.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from eo_pipeline.errors import ManifestDamagedError, NothingToDoError
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.places import Place
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.plans import OpenSteps
from eo_pipeline.run.targets import refuse_stale


@dataclass(frozen=True, kw_only=True)
class SetAsidePlan:
    """The promises on top of ``head`` that cannot be read, each with its file and what is wrong."""

    pipeline: str
    head: LedgerEntry
    damages: tuple[ManifestDamagedError, ...]
    open_steps: OpenSteps = field(repr=False, compare=False)

    def __str__(self) -> str:
        named = ", ".join(each.path for each in self.damages)
        return (
            f"set aside in {self.pipeline}: the promise of version {self.head.version + 1} in "
            f"{named}; the ledger, at version {self.head.version}, does not hold it"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "pipeline": self.pipeline,
            "operation": "set_aside",
            "head": self.head.version,
            "manifests": [each.path for each in self.damages],
        }

    def apply(self) -> tuple[Place, ...]:
        """Returns where the manifests are kept now.

        Raises:
            StalePlanError: the ledger has moved on since, so that perhaps none is in the way.
        """
        with self.open_steps() as steps:
            refuse_stale(self.pipeline, self.head, steps.session.verified(steps.session.head()))
            return tuple(found.set_aside() for found, _ in steps.recovery.damaged(self.head))


def damaged_promises(steps: Steps, head: LedgerEntry | None) -> tuple[ManifestDamagedError, ...]:
    """What stops the next run, on top of ``head``, before it has read anything."""
    return tuple(error for _, error in steps.recovery.damaged(head))


def plan_set_aside(open_steps: OpenSteps) -> SetAsidePlan:
    """See :meth:`eo_pipeline.pipeline.Pipeline.plan_set_aside`."""
    with open_steps() as steps:
        head = steps.session.verified(steps.session.head())
        damages = damaged_promises(steps, head)
        if head is None or not damages:
            raise NothingToDoError(
                f"Pipeline {steps.pipeline!r}: every promise that waits can be read; there is "
                "nothing to set aside."
            )
        return SetAsidePlan(
            pipeline=steps.pipeline, open_steps=open_steps, head=head, damages=damages
        )
