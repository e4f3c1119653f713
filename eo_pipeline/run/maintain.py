"""Maintenance: the table's files are put in order, what dead runs left is settled, and the ledger
is pruned if that is asked for. No row is changed, so that it may be done beside runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.progress import phase
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.prune import prune
from eo_pipeline.sinks.maintenance import Maintenance, Upkeep


@dataclass(frozen=True, kw_only=True)
class MaintenanceReport:
    """What was done, or with ``dry_run`` would be, of the pipeline whose ledger's head is
    ``version``.
    """

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
            "work": [each.to_json() for each in self.work],
        }


def maintain(steps: Steps, rules: Maintenance, *, dry_run: bool) -> MaintenanceReport:
    """See :meth:`eo_pipeline.pipeline.Pipeline.maintain`."""
    head = steps.session.verified(steps.session.head())
    done = tuple(_work(steps, head, rules, dry_run=dry_run))
    head = steps.session.head()
    return MaintenanceReport(
        pipeline=steps.pipeline,
        version=head.version if head else None,
        dry_run=dry_run,
        work=done,
    )


def _work(
    steps: Steps, head: LedgerEntry | None, rules: Maintenance, *, dry_run: bool
) -> Iterator[Upkeep]:
    with phase(f"{steps.pipeline}: staging"):
        yield _staging(steps, head, dry_run=dry_run)
    with phase(f"{steps.pipeline}: maintenance of {steps.sink.table_name}"):
        yield from steps.session.maintain(rules, dry_run=dry_run)
    with phase(f"{steps.pipeline}: the ledger"):
        now = steps.session.verified(steps.session.head())
        yield from prune(steps, now, rules.ledger_kept_for, dry_run=dry_run)


def _staging(steps: Steps, head: LedgerEntry | None, *, dry_run: bool) -> Upkeep:
    """As every run begins: promises of dead runs are kept, what can never be committed goes."""
    begun, staging = time.monotonic(), steps.recovery.staging
    before = len(staging.attempts(head.ledger_id if head else None))
    if dry_run:
        said = "attempts of runs; those of dead ones would be settled" if before else "no attempts"
        return Upkeep("staging", said, before, before)
    promised = steps.recover()
    after = len(staging.attempts(promised.ledger_id if promised else None))
    said = "attempts of dead runs settled" if after < before else "nothing to settle"
    return Upkeep("staging", said, before, after, seconds=time.monotonic() - begun)
