"""Ledger entries as materializations: how Dagster's event log mirrors the ledger.

The offset asset's event always comes last, after the table's and the checkpoint's. So an offset
event says that all are there, and whoever repairs the log need only look for that one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import dagster as dg

from eo_pipeline.dagster.columns import written_columns
from eo_pipeline.dagster.metadata import (
    LEDGER_ONLY,
    entry_metadata,
    identity_metadata,
    offsets_metadata,
    ranges_metadata,
    report_metadata,
    table_metadata,
)
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.ledger.entry import CODE_VERSION, EntryId, LedgerEntry, Operation
from eo_pipeline.run.reports import CheckpointReport
from eo_pipeline.sinks.removal import goes_back

#: Where Dagster keeps the data version of an event that is not a step's output.
DATA_VERSION_TAG = "dagster/data_version"

#: ... and which code it keeps for one that is.
CODE_VERSION_TAG = "dagster/code_version"

#: Identifies the ledger entry an event reports: a version alone comes again after a restored
#: backup.
TRANSACTION_TAG = "eo/transaction_id"


@dataclass(frozen=True)
class EntryEvent:
    """One asset's event for one ledger entry."""

    key: dg.AssetKey
    id: EntryId
    metadata: Mapping[str, Any]
    code_version: str | None = None
    partition: str | None = None
    #: it makes nothing newer, and must not be taken for that by a freshness policy
    observed: bool = False

    def event(self) -> dg.AssetMaterialization | dg.AssetObservation:
        """For every event but a step's last: logged at once, or by a sensor."""
        made = self.materialization()
        if not self.observed:
            return made
        return dg.AssetObservation(self.key, metadata=made.metadata, tags=made.tags)

    def materialization(self) -> dg.AssetMaterialization:
        """As an event of an asset that is newer by it."""
        version = {DATA_VERSION_TAG: str(self.id.version)}
        if self.code_version is not None:
            version[CODE_VERSION_TAG] = self.code_version
        return dg.AssetMaterialization(
            self.key,
            metadata=self.metadata,
            tags=version | self._transaction,
            partition=self.partition,
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


def of_entry(declared: DagsterPipeline, entry: LedgerEntry) -> list[EntryEvent]:
    """The events of an entry of which only the ledger tells: lag and times are not known."""
    return _events(declared, entry, {}, {})


def of_report(declared: DagsterPipeline, report: CheckpointReport) -> list[EntryEvent]:
    """The events of an entry this run committed."""
    known = report_metadata(report)
    return _events(declared, report.entry, known, written_columns(declared, report.columns))


def _events(
    declared: DagsterPipeline, entry: LedgerEntry, run: dict[str, Any], columns: dict[str, Any]
) -> list[EntryEvent]:
    first, last = entry_metadata(entry) | run, identity_metadata(entry)
    offsets = EntryEvent(declared.offsets, entry.id, first | offsets_metadata(entry) | last)
    if entry.operation in LEDGER_ONLY:
        return [offsets]
    code = entry.details.get(CODE_VERSION)
    of_table = first | table_metadata(entry) | last | columns
    is_back = declared.automation.freshness is not None and goes_back(entry)
    table = EntryEvent(declared.table, entry.id, of_table, code, observed=is_back)
    checkpoint = entry_metadata(entry) | ranges_metadata(entry) | run | last
    return [*_checkpoint(declared, entry, checkpoint), table, offsets]


def _checkpoint(
    declared: DagsterPipeline, entry: LedgerEntry, metadata: dict[str, Any]
) -> list[EntryEvent]:
    """The event of the checkpoint whose rows the entry wrote: its own, or the one it replayed."""
    if entry.operation not in (Operation.FORWARD, Operation.REPLAY) or not entry.ranges:
        return []
    code = entry.details.get(CODE_VERSION)
    return [EntryEvent(declared.checkpoints, entry.id, metadata, code, str(entry.checkpoint))]


def reported_id(event: dg.AssetMaterialization) -> EntryId | None:
    """Which ledger entry an event reports; None for an event somebody else wrote."""
    tags = event.tags or {}
    version, transaction = tags.get(DATA_VERSION_TAG, ""), tags.get(TRANSACTION_TAG)
    if transaction is None or not version.isdigit():
        return None
    return EntryId(int(version), transaction)
