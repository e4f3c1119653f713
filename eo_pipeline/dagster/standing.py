"""The table of what stands, on the overview of the asset of checkpoints: to choose from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import dagster as dg

from eo_pipeline.dagster import mirror
from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.dagster.tables import Columns, table
from eo_pipeline.ledger.branch import checkpoints, live_branch
from eo_pipeline.ledger.entry import CODE_VERSION, LedgerEntry, Operation

#: Versions the table shows, and ledger entries that are read for it.
STANDING_SHOWN = 100
ENTRIES_LOOKED_AT = 300

_COLUMNS: Columns = {
    "version": "int",
    "committed_at": "string",
    "operation": "string",
    "of": "int",
    "records": "int",
    "rows": "int",
    "rows_total": "int",
    "reason": "string",
    "code_version": "string",
}


def standing_event(
    declared: DagsterPipeline, instance: dg.DagsterInstance
) -> dg.AssetMaterialization | None:
    """The newest checkpoint once more, with the table: an overview shows what the last event says.

    None if no checkpoint stands.
    """
    newest = declared.pipeline.newest(ENTRIES_LOOKED_AT)
    found = checkpoints(newest)
    if not found:
        return None
    table = {"standing": standing_table(live_branch(newest))}
    event = _shown(declared, instance, str(found[-1].version))
    if event is None:
        [event] = [
            each.materialization()
            for each in mirror.of_entry(declared, found[-1].written)
            if each.key == declared.checkpoints
        ]
    return dg.AssetMaterialization(
        declared.checkpoints,
        partition=event.partition,
        tags=event.tags,
        metadata={**table, **{k: v for k, v in event.metadata.items() if k not in table}},
    )


def standing_table(live: Iterable[LedgerEntry]) -> dg.MetadataValue:
    """A row for each version that one can go back to, the newest first."""
    newest_first = [each for each in live if each.operation is not Operation.START][::-1]
    return table(_COLUMNS, map(_row, newest_first[:STANDING_SHOWN]))


def _row(entry: LedgerEntry) -> dict[str, Any]:
    counts, when = entry.counts, entry.committed_at
    return {
        "version": entry.version,
        "committed_at": f"{when:%Y-%m-%d %H:%M:%S %Z}" if when else None,
        "operation": entry.operation.value,
        "of": entry.target,
        "records": counts.records,
        "rows": counts.rows,
        "rows_total": counts.rows_total,
        "reason": str(entry.details.get("reason") or ""),
        "code_version": str(entry.details.get(CODE_VERSION) or ""),
    }


def _shown(
    declared: DagsterPipeline, instance: dg.DagsterInstance, partition: str
) -> dg.AssetMaterialization | None:
    wanted = dg.AssetRecordsFilter(declared.checkpoints, asset_partitions=[partition])
    records = instance.fetch_materializations(wanted, limit=1).records
    return records[0].asset_materialization if records else None
