"""Ledger entries and reports as Dagster metadata.

Dagster plots numbers, in alphabetical order. So values to follow over time are numbers, and values
of a single checkpoint are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import dagster as dg
import yaml

from eo_pipeline.dagster.naming import DagsterPipeline
from eo_pipeline.formats import json_schema
from eo_pipeline.formats.ddl import Field, fields_of
from eo_pipeline.formats.kinds import key_as_record, kind_of
from eo_pipeline.formats.parts import KEY, KEY_COLUMN, VALUE
from eo_pipeline.formats.schema_diff import Shape
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import (
    CHECKPOINT_COLUMN,
    CODE_VERSION,
    Counts,
    LedgerEntry,
    Operation,
)
from eo_pipeline.ledger.history import Checkpoint
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.operations.change_plan import RereadingPlan
from eo_pipeline.runs.report import CheckpointReport
from eo_pipeline.sinks.config import Sink

if TYPE_CHECKING:
    from eo_pipeline.audit import ReplayPreview

#: Type, or type and description, by column name.
Columns = Mapping[str, str | tuple[str, str]]


def table(columns: Columns, rows: Iterable[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """Return a table of ``rows``, each keyed by the names of ``columns``."""
    shown = [
        dg.TableColumn(name, kind)
        if isinstance(kind, str)
        else dg.TableColumn(name, kind[0], description=kind[1])
        for name, kind in columns.items()
    ]
    records = [dg.TableRecord(dict(row)) for row in rows]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=shown))


def table_of(columns: Columns, objects: Iterable[object]) -> dg.TableMetadataValue:
    """Return a table with a row per object, which has an attribute per column."""
    return table(columns, ({name: getattr(item, name) for name in columns} for item in objects))


#: Kafka partitions shown in a table; a topic may have 10,000, and an event is kept for ever.
SHOWN_MAX = 100

#: Operations whose entries leave the table unchanged.
LEDGER_ONLY = frozenset(
    {Operation.START, Operation.FORK, Operation.ADOPT, Operation.ACCEPT_LOSS, Operation.PRUNE}
)

Metadata = Mapping[str, Any]


#: Details of an entry that are shown.
_DETAILS = ("reason", "asked_by", CODE_VERSION)


def entry_metadata(entry: LedgerEntry) -> dict[str, Any]:
    """Return the metadata of a checkpoint for both assets, from the ledger alone."""
    costs = entry.counts.costs
    counts, holes, before = entry.counts, entry.offsets_without_record, entry.lag_before
    return {
        "version": str(entry.version),
        "operation": entry.operation.value,
        **({"target": str(entry.target)} if entry.target is not None else {}),
        **{key: entry.details[key] for key in _DETAILS if entry.details.get(key)},
        "records": counts.records,
        **({"offsets_without_record": count_text(holes)} if holes else {}),
        "rows": counts.rows,
        **({"dead_letters": counts.dead_letters} if counts.dead_letters else {}),
        "bytes": count_text(counts.bytes),
        **({"unknown": count_text(counts.unknown)} if counts.unknown else {}),
        **({} if before is None else {"lag_before": before}),
        **({} if costs is None or costs.lag is None else {"lag_after": count_text(costs.lag)}),
    }


def identity_metadata(entry: LedgerEntry) -> dict[str, Any]:
    """Return the fields that identify an entry; shown last."""
    instant = entry.committed_at
    return {
        "started_at": dg.MetadataValue.timestamp(entry.started_at),
        **({"committed_at": dg.MetadataValue.timestamp(instant)} if instant else {}),
        "run_id": run_link(entry.run_id),
        "transaction_id": entry.transaction_id,
    }


def run_link(run_id: str) -> dg.MetadataValue:
    """Return a link for ids of Dagster runs; ids of other runs have no dashes."""
    if "-" in run_id:
        return dg.MetadataValue.dagster_run(run_id)
    return dg.MetadataValue.text(run_id)


def offsets_metadata(entry: LedgerEntry) -> dict[str, Any]:
    """Return the metadata of the offset asset: the ranges read and the next offsets."""
    return {
        "tombstones": count_text(entry.counts.tombstones),
        **({"unknown_fields": ", ".join(names)} if (names := entry.counts.unknown_fields) else {}),
        "kafka_partitions": count_text(len(entry.offsets)),
        **ranges_metadata(entry),
        **({"details": dg.MetadataValue.json(dict(entry.details))} if entry.details else {}),
    }


def ranges_metadata(entry: LedgerEntry) -> dict[str, Any]:
    """Return the ranges of an entry, one row per Kafka partition; next offsets if it read none."""
    total = len(entry.ranges or entry.offsets)
    return {
        "ranges": _ranges(entry.ranges) if entry.ranges else _offsets(entry),
        **({"ranges_shown": f"{SHOWN_MAX} of {total:,}"} if total > SHOWN_MAX else {}),
    }


def table_metadata(entry: LedgerEntry) -> dict[str, Any]:
    """Return the metadata of the table asset."""
    return {"dagster/row_count": entry.counts.rows_total}


def member_metadata(entry: LedgerEntry, counts: Counts) -> dict[str, Any]:
    """Return the metadata of one of several tables, which has ``counts`` in ``entry``."""
    return {
        "version": str(entry.version),
        "operation": entry.operation.value,
        **({"target": str(entry.target)} if entry.target is not None else {}),
        "records": counts.records,
        "rows": counts.rows,
        **({"dead_letters": counts.dead_letters} if counts.dead_letters else {}),
        "dagster/row_count": counts.rows_total,
    }


def report_metadata(report: CheckpointReport) -> dict[str, Any]:
    """Return the metadata that only the committing run has: speed and seconds."""
    speed, spent = report.records_per_second, report.seconds
    phases = [f"{name} {seconds:.3f} s" for name, seconds in spent.items()]
    return {
        **({} if speed is None else {"records_per_second": round(speed)}),
        "seconds": round(sum(spent.values()), 3),
        "phases": ", ".join(phases),
        "recovered": report.recovered,
    }


def count_text(number: int) -> dg.MetadataValue:
    """Return a number as text, which Dagster does not plot."""
    return dg.MetadataValue.text(f"{number:,}")


def plan_metadata(plan: RereadingPlan) -> dict[str, Any]:
    """Return the metadata of a rewind, replay or fork: the affected checkpoints and the ranges read
    again.
    """
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
    """Return the changes of a replay, from its preview."""
    rows = preview.rows
    examples = [example.to_json() for example in rows.examples[:SHOWN_MAX]]
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


def _checkpoints(checkpoints: Sequence[Checkpoint]) -> dg.MetadataValue:
    columns: Columns = {
        "version": "int",
        "records": "int",
        "rows": "int",
        "committed_at": "string",
    }
    rows = [
        {
            "version": checkpoint.version,
            "records": checkpoint.entry.counts.records,
            "rows": checkpoint.counts.rows,
            "committed_at": f"{checkpoint.entry.committed_at:%Y-%m-%d %H:%M:%S %Z}",
        }
        for checkpoint in checkpoints
    ]
    return table(columns, rows)


def sink_metadata(sink: Sink) -> dict[str, Any]:
    """Return the location of the table: part of the asset's definition, so shown before the first
    run.
    """
    description = sink.describe()
    location = {
        "dagster/table_name": sink.qualified_name,
        "dagster/storage_kind": description["kind"],
        "dagster/uri": description.get("uri"),
    }
    return {
        **{key: value for key, value in location.items() if value},
        "sink": dg.MetadataValue.json(description),
        "guarantee": sink.guarantee.value,
    }


def _ranges(ranges: Sequence[OffsetRange]) -> dg.MetadataValue:
    return _ranges_table(ranges[:SHOWN_MAX])


def _offsets(entry: LedgerEntry) -> dg.MetadataValue:
    """Return the next offsets of an entry that read nothing."""
    shown = sorted(entry.offsets.items())[:SHOWN_MAX]
    return _ranges_table([OffsetRange(tp.topic, tp.partition, at, at) for tp, at in shown])


def _ranges_table(ranges: Sequence[OffsetRange]) -> dg.MetadataValue:
    columns: Columns = {
        "topic": "string",
        "partition": "int",
        "start": ("int", "first offset read"),
        "end": ("int", "next offset to read"),
        "offsets": ("int", "end - start, including offsets without a record"),
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


#: A command quoted in an error, and the ``Pipeline`` method that may follow it.
_COMMAND = re.compile(r"`eo ([a-z-]+)([^`]*)`(, Pipeline\.\w+\(\))?")

#: Commands with a job in Dagster.
_JOBS = {
    "accept-loss": "accept_loss",
    "audit": "audit",
    "fork": "fork",
    "maintain": "maintain",
    "replay": "replay",
    "rewind": "rewind",
    "run": "job",
}

#: Read-only commands, which an asset replaces in Dagster.
_ASSETS = ("checkpoints", "history", "show", "status")


def in_dagster(declared: DagsterPipeline, text: str) -> str:
    """Replace commands in ``text`` by jobs and assets. Commands for a shell only stay."""

    def substitute(match: re.Match[str]) -> str:
        command, arguments = match[1], match[2].split()
        if command in _ASSETS:
            key = declared.checkpoints if command in ("checkpoints", "show") else declared.offsets
            return f"the asset `{key.to_user_string()}`"
        if command not in _JOBS:
            return match[0]
        if command == "run":
            return f"the job `{declared.job}`"
        config = declared.chosen | _config(command, arguments)
        return f"the job `{declared.job_of(_JOBS[command])}`{_with(config)}"

    return _COMMAND.sub(substitute, text)


def _config(command: str, arguments: list[str]) -> dict[str, Any]:
    versions = [int(argument) for argument in arguments if argument.isdigit()]
    if command == "rewind":
        return {"to": {"version": versions[0]}, "dry_run": False} if versions else {}
    if command == "replay":
        return dict(zip(("first", "last"), versions, strict=False))
    return {}


def _with(config: dict[str, Any]) -> str:
    if not config:
        return ""
    return f" with `{yaml.safe_dump(config, default_flow_style=True).strip()}`"


def job_filled_in(
    run: dg.DagsterRun, job: str, config: Mapping[str, Any]
) -> dict[str, dg.MetadataValue]:
    """Return metadata that names ``job``, shows ``config``, and links to its pre-filled Launchpad.

    Which code location the job is in only a run knows that Dagster itself started.
    """
    document = yaml.safe_dump(dict(config), sort_keys=False)
    shown = {"repair_config": dg.MetadataValue.md(f"```yaml\n{document}```")}
    origin = run.remote_job_origin
    if origin is None:
        return {"repair_job": dg.MetadataValue.text(job), **shown}
    location = origin.location_name
    pad = f"/locations/{quote(location)}/jobs/{job}/playground/setup?config={quote(document)}"
    return {
        "repair_job": dg.MetadataValue.job(job, location_name=location),
        "repair_launchpad": dg.MetadataValue.url(pad),
        **shown,
    }


#: Description of a key's column without a comment.
_KEY = "field of the record's key"

#: Descriptions of the engine's columns.
_ENGINE_COLUMNS = {
    CHECKPOINT_COLUMN: "checkpoint (ledger version) that the row belongs to",
    "_eo_topic": "topic of the source record",
    "_eo_partition": "Kafka partition of the source record",
    "_eo_offset": "offset of the source record",
}


def topic_metadata(declared: DagsterPipeline, key: dg.AssetKey) -> dict[str, Any]:
    """Return the location of a topic, and the declared contents of its values and keys."""
    source = declared.pipeline.source
    name = key.path[-1] if source.topic_pattern is None else source.topic_pattern
    return {
        "dagster/uri": f"kafka://{source.bootstrap_servers}/{name}",
        # pages of observations omit the line above
        "bootstrap_servers": source.bootstrap_servers,
        "value_format": source.value_format,
        **({"schema_subject": source.subject} if source.by_registry(VALUE) else {}),
        **({"key_format": source.key_format} if source.key_format != "raw" else {}),
        **({"key_schema_subject": source.subject_of(KEY)} if source.by_registry(KEY) else {}),
        **_schema([_column(field) for field in _declared(source)]),
    }


def declared_columns(declared: DagsterPipeline) -> dict[str, Any]:
    """Return the table's columns before the first run; none after a transform, whose output is
    unknown.
    """
    fields = _untransformed(declared)
    return _schema([_column(field) for field in fields.values()]) | _lineage(declared, fields)


def member_columns(declared: DagsterPipeline, name: str) -> dict[str, Any]:
    """Return the columns of one of several tables before the first run; none after a transform."""
    [table] = [table for table in declared.pipeline.tables if table.name == name]
    if table.transform is not None or table.source is None:
        return {}
    return _schema([_column(field) for field in _declared(table.source)])


def written_columns(declared: DagsterPipeline, columns: Mapping[str, str] | None) -> dict[str, Any]:
    """Return the table's columns as a checkpoint wrote them, if it wrote rows."""
    if columns is None:
        return {}
    fields = {field.name: field for field in _declared(declared.pipeline.source)}
    comments = {name: field.comment for name, field in fields.items()} | _ENGINE_COLUMNS
    shown = [dg.TableColumn(name, type_, comments.get(name)) for name, type_ in columns.items()]
    untransformed = {name: None for name in _untransformed(declared) if name in columns}
    return _schema(shown) | _lineage(declared, untransformed)


def _declared(source: KafkaSource) -> tuple[Field, ...]:
    """Return the declared columns of values and keys."""
    return (*_value_fields(source), *_key_fields(source))


def _value_fields(source: KafkaSource) -> Sequence[Field]:
    if source.value_format == "json":
        return fields_of(source.value_schema)
    if source.value_schema is None or source.value_format == "raw":
        return ()
    kind = kind_of(source.schema_type, source.message)
    return _shape_fields(kind.shape_of(source.schema_text))


def _key_fields(source: KafkaSource) -> Sequence[Field]:
    """Return the fields of keys, under the names of their columns."""
    if source.key_format == "text":
        return [Field(KEY_COLUMN, "STRING", comment=_KEY)]
    text = source.key_schema
    if text is None:
        return ()
    if source.key_format == "json" and not json_schema.is_one(text):
        return [_prefixed(source, field) for field in fields_of(text)]
    kind = source.schema_type_of(KEY)
    shape = kind_of(kind, source.message_of(KEY)).shape_of(source.schema_text_of(KEY))
    fields = _shape_fields(shape)
    if key_as_record(kind, text) != text:
        return [replace(field, comment=_KEY) for field in fields]
    return [_prefixed(source, field) for field in fields]


def _shape_fields(shape: Shape) -> list[Field]:
    kinds = {name: str(part) for name, part in shape.parts}
    return [Field(name, kind if "<" in kind else kind.upper()) for name, kind in kinds.items()]


def _prefixed(source: KafkaSource, field: Field) -> Field:
    """Return the field under its column's name; optional, since a record may lack the key."""
    comment = field.comment or _KEY
    return replace(field, name=f"{source.key_prefix}{field.name}", required=False, comment=comment)


def _untransformed(declared: DagsterPipeline) -> dict[str, Field]:
    """Return the fields that are columns of the table; none after a transform, which may change
    them, and none of several tables together.
    """
    pipeline = declared.pipeline
    if pipeline.transform is not None or pipeline.has_tables:
        return {}
    return {field.name: field for field in _declared(pipeline.source)}


def _lineage(declared: DagsterPipeline, columns: Mapping[str, object]) -> dict[str, Any]:
    """Return the lineage: each column comes from the field of its name, in every topic."""
    if not columns:
        return {}
    by_column = {
        name: [dg.TableColumnDep(asset_key=key, column_name=name) for key in declared.topics]
        for name in columns
    }
    return {"dagster/column_lineage": dg.TableColumnLineage(by_column)}


def _schema(columns: list[dg.TableColumn]) -> dict[str, Any]:
    return {"dagster/column_schema": dg.TableSchema(columns=columns)} if columns else {}


def _column(field: Field) -> dg.TableColumn:
    constraints = dg.TableColumnConstraints(nullable=not field.required)
    return dg.TableColumn(field.name, field.type, field.comment, constraints)
