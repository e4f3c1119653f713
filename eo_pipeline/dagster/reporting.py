"""What a step tells Dagster of the ledger, while it moves it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import takewhile
from types import TracebackType
from typing import Self

import dagster as dg

from eo_pipeline.dagster import mirror, partitions
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.run.reports import CheckpointReport

#: How far back a step looks for entries that nobody reported.
ENTRIES_LOOKED_AT = 200

StepContext = dg.OpExecutionContext | dg.AssetExecutionContext


@dataclass
class EventReporter:
    """Logs every event at once: for a step whose assets are not its outputs."""

    declared: DagsterPipeline
    context: StepContext

    def catch_up(self) -> None:
        """Report what nobody did, before this step's own events: the order is the ledger's."""
        for entry in unreported(self.declared, self.context.instance):
            version = entry.version
            self.context.log.info(f"version {version} was committed and not reported: is now")
            self._report(entry, mirror.of_entry(self.declared, entry))

    def committed(self, report: CheckpointReport) -> None:
        """For the engine to call after each commit."""
        self.context.log.info(summary_line(report))
        self._report(report.entry, mirror.of_report(self.declared, report))

    def _report(self, entry: LedgerEntry, events: Sequence[mirror.EntryEvent]) -> None:
        partitions.update_keys(self.declared, self.context.instance, entry)
        for event in events:
            self._log(event)

    def _log(self, event: mirror.EntryEvent) -> None:
        self.context.log_event(event.event())


@dataclass
class HoldingEventReporter(EventReporter):
    """Logs an event as soon as it is known not to be its asset's last: for the forward step.

    Dagster takes one result per asset and step. So the newest event of each asset is held back:
    a step that ends well yields it, one that fails for good logs it. One that is tried again
    leaves it to the next attempt, which finds the entry in the ledger; after a kill the
    reconciler does.
    """

    _held: dict[dg.AssetKey, mirror.EntryEvent] = field(default_factory=dict)

    def _log(self, event: mirror.EntryEvent) -> None:
        earlier = self._held.pop(event.key, None)
        if earlier is not None:
            super()._log(earlier)
        self._held[event.key] = event  # at the end: the order is that of the ledger

    def results(self, selected: Set[dg.AssetKey]) -> Iterator[dg.MaterializeResult[None]]:
        """What the step yields, once it has nothing more to tell: of the assets ``selected``. What
        is not the step's to yield is logged: an asset that nobody selected, and the checkpoints.
        """
        for event in self._held.values():
            if event.key in selected and not event.observed:
                yield event.result()
            else:
                self.context.log_event(event.event())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None and not isinstance(exc, dg.RetryRequested):
            for event in self._held.values():
                self.context.log_event(event.event())


def unreported(declared: DagsterPipeline, instance: dg.DagsterInstance) -> list[LedgerEntry]:
    """What earlier attempts and killed runs committed and did not live to report, oldest first.

    Anything older than the last few hundred entries is left to the reconciler.
    """
    page = instance.fetch_materializations(declared.offsets, limit=ENTRIES_LOOKED_AT)
    events = [record.asset_materialization for record in page.records]
    reported = {mirror.reported_id(event) for event in events if event}
    head = declared.pipeline.head()
    if head is None or head.id in reported:
        return []
    entries = declared.pipeline.newest(ENTRIES_LOOKED_AT)
    newest_first = takewhile(lambda entry: entry.id not in reported, reversed(entries))
    return list(newest_first)[::-1]


def summary_line(report: CheckpointReport) -> str:
    """One line for the run's log, there as soon as the commit is."""
    entry, counts = report.entry, report.entry.counts
    if not entry.ranges:
        aim = f" to {entry.target}" if entry.target is not None else ""
        return f"version {entry.version}: {entry.operation.value}{aim}, no rows"
    replayed = f"replay of {entry.target}, " if entry.target is not None else ""
    recovered = ", staged by a run that died" if report.recovered else ""
    dead = f", {counts.dead_letters:,} dead letters" if counts.dead_letters else ""
    lag = f"; lag {report.lag_after:,}" if report.lag_after is not None else ""
    return (
        f"version {entry.version}: {replayed}{counts.records:,} records, {counts.rows:,} rows"
        f"{dead} in {sum(report.seconds.values()):.1f} s{recovered}{lag}"
    )
