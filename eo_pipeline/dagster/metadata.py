"""Ledger entries and reports as Dagster metadata.

Dagster plots what is a number, in the order of the alphabet. So numbers are what somebody looks at
over time, and what only belongs to one checkpoint is text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import dagster as dg

from eo_pipeline.dagster.tables import Columns, table
from eo_pipeline.ledger.branch import Checkpoint
from eo_pipeline.ledger.entry import CODE_VERSION, LedgerEntry, Operation
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.run.plans import RereadingPlan
from eo_pipeline.run.reports import CheckpointReport
from eo_pipeline.sinks.config import Sink

if TYPE_CHECKING:
    from eo_pipeline.audit import ReplayPreview

#: Kafka partitions shown in a table; a topic may have 10,000, and an event is kept for ever.
SHOWN_MAX = 100

#: Entries that leave the table as it is.
LEDGER_ONLY = frozenset(
    {Operation.START, Operation.FORK, Operation.ADOPT, Operation.ACCEPT_LOSS, Operation.PRUNE}
)

Metadata = Mapping[str, Any]


#: What of an entry's details is shown.
_DETAILS = ("reason", "asked_by", CODE_VERSION)


def entry_metadata(entry: LedgerEntry) -> dict[str, Any]:
    """What both assets say of a checkpoint, from the ledger alone."""
    counts = entry.counts
    return {
        "version": str(entry.version),
        "operation": entry.operation.value,
        **({"target": str(entry.target)} if entry.target is not None else {}),
        **{key: entry.details[key] for key in _DETAILS if entry.details.get(key)},
        "records": counts.records,
        "rows": counts.rows,
        **({"dead_letters": counts.dead_letters} if counts.dead_letters else {}),
        "bytes": _text(counts.bytes),
        **({"unknown": _text(counts.unknown)} if counts.unknown else {}),
    }


def identity_metadata(entry: LedgerEntry) -> dict[str, Any]:
    """How to find the entry again: what a person looks at last."""
    instant = entry.committed_at
    return {
        "started_at": dg.MetadataValue.timestamp(entry.started_at),
        **({"committed_at": dg.MetadataValue.timestamp(instant)} if instant else {}),
        "run_id": run_link(entry.run_id),
        "transaction_id": entry.transaction_id,
    }


def run_link(run_id: str) -> dg.MetadataValue:
    """A link, where the id is one of Dagster's: those of other runs have no dashes."""
    if "-" in run_id:
        return dg.MetadataValue.dagster_run(run_id)
    return dg.MetadataValue.text(run_id)


def offsets_metadata(entry: LedgerEntry) -> dict[str, Any]:
    """What only the offset asset says: where the checkpoint read and where reading continues."""
    return {
        "tombstones": _text(entry.counts.tombstones),
        **({"unknown_fields": ", ".join(names)} if (names := entry.counts.unknown_fields) else {}),
        "kafka_partitions": _text(len(entry.offsets)),
        **ranges_metadata(entry),
        **({"details": dg.MetadataValue.json(dict(entry.details))} if entry.details else {}),
    }


def ranges_metadata(entry: LedgerEntry) -> dict[str, Any]:
    """What an entry read, a row a Kafka partition; where reading continues, if it read nothing."""
    total = len(entry.ranges or entry.offsets)
    return {
        "ranges": _ranges(entry.ranges) if entry.ranges else _offsets(entry),
        **({"ranges_shown": f"{SHOWN_MAX} of {total:,}"} if total > SHOWN_MAX else {}),
    }


def table_metadata(entry: LedgerEntry) -> dict[str, Any]:
    """What only the table asset says."""
    return {"dagster/row_count": entry.counts.rows_total}


def report_metadata(report: CheckpointReport) -> dict[str, Any]:
    """What only the run that committed knows: lag, seconds, speed."""
    speed = report.records_per_second
    before, spent = report.lag_before, report.seconds
    known = {
        "lag": report.lag_after,
        "lag_before": None if before is None else _text(before),
        "records_per_second": round(speed) if speed is not None else None,
        # what takes long: the rows on their way out of Kafka, and into the table
        **{f"seconds_{name}": round(spent[name], 4) for name in _PLOTTED if name in spent},
    }
    phases = [f"{name} {seconds:.3f}" for name, seconds in spent.items()]
    return {
        **{key: value for key, value in known.items() if value is not None},
        "seconds": f"{sum(spent.values()):.3f}: {', '.join(phases)}",
        "recovered": report.recovered,
    }


#: The phases of a checkpoint that are worth a plot.
_PLOTTED = ("stage", "commit")


def _text(number: int) -> dg.MetadataValue:
    return dg.MetadataValue.text(f"{number:,}")


def plan_metadata(plan: RereadingPlan) -> dict[str, Any]:
    """A rewind, a replay or a fork: what it does to which checkpoints, and what is read again."""
    return {
        "head": plan.head.version,
        **({"target": plan.target_version} if plan.target_version is not None else {}),
        "rows": plan.rows,
        "records_to_read_again": plan.records,
        **({"seconds_estimated": round(plan.seconds, 1)} if plan.seconds is not None else {}),
        "checkpoints": len(plan.checkpoints),
        "checkpoints_table": _checkpoints(plan.checkpoints[:SHOWN_MAX]),
        "ranges": _ranges(plan.ranges),
        **({"warnings": "\n".join(plan.warnings)} if plan.warnings else {}),
    }


def preview_metadata(preview: ReplayPreview) -> dict[str, Any]:
    """What a replay would change, by a preview of it."""
    rows = preview.rows
    examples = [each.to_json() for each in rows.examples[:SHOWN_MAX]]
    columns: Columns = {"column": "string", "changes": "int"}
    changes = [{"column": name, "changes": count} for name, count in rows.columns.items()]
    return {
        "preview": str(preview),
        "rows_changed": rows.changed,
        "rows_added": rows.added,
        "rows_removed": rows.removed,
        "rows_unchanged": rows.unchanged,
        **({"columns_changed": table(columns, changes)} if changes else {}),
        **({"examples": dg.MetadataValue.json(examples)} if examples else {}),
        **({"not_compared": ", ".join(preview.left_out)} if preview.left_out else {}),
    }


def _checkpoints(found: Sequence[Checkpoint]) -> dg.MetadataValue:
    columns: Columns = {
        "version": "int",
        "records": "int",
        "rows": "int",
        "committed_at": "string",
    }
    rows = [
        {
            "version": each.version,
            "records": each.entry.counts.records,
            "rows": each.counts.rows,
            "committed_at": f"{each.entry.committed_at:%Y-%m-%d %H:%M:%S %Z}",
        }
        for each in found
    ]
    return table(columns, rows)


def sink_metadata(sink: Sink) -> dict[str, Any]:
    """Where the table is: part of the asset's definition, so known before the first run."""
    described = sink.describe()
    known = {
        "dagster/table_name": sink.qualified_name,
        "dagster/storage_kind": described["kind"],
        "dagster/uri": described.get("uri"),
    }
    return {
        **{key: value for key, value in known.items() if value},
        "sink": dg.MetadataValue.json(described),
        "guarantee": sink.guarantee.value,
    }


def _ranges(ranges: Sequence[OffsetRange]) -> dg.MetadataValue:
    return _ranges_table(ranges[:SHOWN_MAX])


def _offsets(entry: LedgerEntry) -> dg.MetadataValue:
    """For an entry that read nothing: where reading continues."""
    shown = sorted(entry.offsets.items())[:SHOWN_MAX]
    return _ranges_table([OffsetRange(tp.topic, tp.partition, at, at) for tp, at in shown])


def _ranges_table(ranges: Sequence[OffsetRange]) -> dg.MetadataValue:
    columns: Columns = {
        "topic": "string",
        "partition": "int",
        "start": ("int", "first offset read"),
        "end": ("int", "next offset to read"),
        "offsets": ("int", "end - start: at least the records read"),
    }
    rows = [
        {
            "topic": r.topic,
            "partition": r.partition,
            "start": r.start,
            "end": r.end,
            "offsets": r.span,
        }
        for r in ranges
    ]
    return table(columns, rows)
