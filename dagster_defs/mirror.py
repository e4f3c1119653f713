"""Ledger entries as materializations: how Dagster's event log mirrors the ledger.

The table's event always comes before the offset asset's. So an offset event says that both are
there, and whoever repairs the log need only look for that one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import dagster as dg

from dagster_defs.metadata import (
    LEDGER_ONLY,
    column_schema,
    entry_metadata,
    identity_metadata,
    offsets_metadata,
    report_metadata,
    table_metadata,
)
from dagster_defs.names import DagsterPipeline
from eo_pipeline.checkpoint import EntryId, LedgerEntry
from eo_pipeline.report import CheckpointReport

#: Where Dagster keeps the data version of an event that is not a step's output.
DATA_VERSION_TAG = "dagster/data_version"

#: Identifies the ledger entry an event reports: a version alone comes again after a restored
#: backup.
TRANSACTION_TAG = "eo/transaction_id"


@dataclass(frozen=True)
class Reported:
    """One asset's event for one ledger entry."""

    key: dg.AssetKey
    id: EntryId
    metadata: Mapping[str, Any]

    def materialization(self) -> dg.AssetMaterialization:
        """For every event but a step's last: logged at once, or by a sensor."""
        version = {DATA_VERSION_TAG: str(self.id.version)}
        return dg.AssetMaterialization(
            self.key, metadata=self.metadata, tags=version | self._transaction
        )

    def result(self) -> dg.MaterializeResult[None]:
        """For a step's last event: it is the output that assets downstream wait for."""
        return dg.MaterializeResult(
            asset_key=self.key,
            metadata=self.metadata,
            data_version=dg.DataVersion(str(self.id.version)),
            tags=self._transaction,
        )

    @property
    def _transaction(self) -> dict[str, str]:
        return {TRANSACTION_TAG: self.id.transaction_id}


def of_entry(declared: DagsterPipeline, entry: LedgerEntry) -> list[Reported]:
    """The events of an entry of which only the ledger tells: lag and times are not known."""
    return _events(declared, entry, {}, {})


def of_report(declared: DagsterPipeline, report: CheckpointReport) -> list[Reported]:
    """The events of an entry this run committed."""
    known = report_metadata(report)
    return _events(declared, report.entry, known, column_schema(report.columns))


def _events(
    declared: DagsterPipeline, entry: LedgerEntry, run: dict[str, Any], columns: dict[str, Any]
) -> list[Reported]:
    first, last = entry_metadata(entry) | run, identity_metadata(entry)
    offsets = Reported(declared.offsets, entry.id, first | offsets_metadata(entry) | last)
    if entry.operation in LEDGER_ONLY:
        return [offsets]
    table = Reported(declared.table, entry.id, first | table_metadata(entry) | last | columns)
    return [table, offsets]


def reported_id(event: dg.AssetMaterialization) -> EntryId | None:
    """Which ledger entry an event reports; None for an event somebody else wrote."""
    tags = event.tags or {}
    version, transaction = tags.get(DATA_VERSION_TAG, ""), tags.get(TRANSACTION_TAG)
    if transaction is None or not version.isdigit():
        return None
    return EntryId(int(version), transaction)


@dataclass
class StepEvents:
    """The events of one step, each logged as soon as it is known not to be the asset's last.

    Dagster takes one result per asset and step. So the newest event of each asset is held back:
    a step that ends well yields it, one that fails for good logs it. One that is tried again
    leaves it to the next attempt, which finds the entry in the ledger; after a kill the
    reconciler does.
    """

    context: dg.AssetExecutionContext
    retries: int
    _held: dict[dg.AssetKey, Reported] = field(default_factory=dict)

    def add(self, events: list[Reported]) -> None:
        """Report ``events`` of one ledger entry."""
        for event in events:
            earlier = self._held.pop(event.key, None)
            if earlier is not None:
                self.context.log_event(earlier.materialization())
            self._held[event.key] = event  # at the end: the order is that of the ledger

    def results(self) -> Iterator[dg.MaterializeResult[None]]:
        """What the step yields, once it has nothing more to add."""
        for event in self._held.values():
            yield event.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if exc is not None and not self._tried_again(exc):
            for event in self._held.values():
                self.context.log_event(event.materialization())

    def _tried_again(self, error: BaseException) -> bool:
        """Whether Dagster's retry policy makes another attempt after ``error``."""
        final = isinstance(error, dg.Failure) and not error.allow_retries
        left = self.context.retry_number < self.retries
        return left and isinstance(error, Exception) and not final
