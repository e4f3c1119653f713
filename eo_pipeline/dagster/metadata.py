"""Ledger entries and reports as Dagster metadata.

Dagster plots what is a number, in the order of the alphabet. So numbers are what somebody looks at
over time, and what only belongs to one checkpoint is text.
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
from eo_pipeline.formats.kinds import kind_of, plain_or_record
from eo_pipeline.formats.parts import KEY, KEY_COLUMN, VALUE
from eo_pipeline.formats.schema_diff import Shape
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, CODE_VERSION, LedgerEntry, Operation
from eo_pipeline.ledger.history import Checkpoint
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.operations.plan import RereadingPlan
from eo_pipeline.runs.report import CheckpointReport
from eo_pipeline.sinks.config import Sink

if TYPE_CHECKING:
    from eo_pipeline.audit import ReplayPreview

#: By a column's name its type, or its type and what is said about it.
Columns = Mapping[str, str | tuple[str, str]]


def table(columns: Columns, rows: Iterable[Mapping[str, Any]]) -> dg.TableMetadataValue:
    """``rows`` by the names of the ``columns``."""
    shown = [
        dg.TableColumn(name, kind)
        if isinstance(kind, str)
        else dg.TableColumn(name, kind[0], description=kind[1])
        for name, kind in columns.items()
    ]
    records = [dg.TableRecord(dict(row)) for row in rows]
    return dg.MetadataValue.table(records, schema=dg.TableSchema(columns=shown))


def table_of(columns: Columns, found: Iterable[object]) -> dg.TableMetadataValue:
    """A row for each of ``found``, which has an attribute for each of the ``columns``."""
    return table(columns, ({name: getattr(each, name) for name in columns} for each in found))


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


#: A command as errors quote it, and the method of ``Pipeline`` that they may name beside it.
_COMMAND = re.compile(r"`eo ([a-z-]+)([^`]*)`(, Pipeline\.\w+\(\))?")

#: Commands that are jobs here.
_JOBS = {
    "accept-loss": "accept_loss",
    "audit": "audit",
    "fork": "fork",
    "maintain": "maintain",
    "replay": "replay",
    "rewind": "rewind",
    "run": "job",
}

#: Commands that only look: what shows the same.
_ASSETS = ("checkpoints", "history", "show", "status")


def in_dagster(declared: DagsterPipeline, text: str) -> str:
    """``text`` with jobs and assets in place of commands. What only a shell can do stays."""

    def instead(found: re.Match[str]) -> str:
        command, arguments = found[1], found[2].split()
        if command in _ASSETS:
            key = declared.checkpoints if command in ("checkpoints", "show") else declared.offsets
            return f"the asset `{key.to_user_string()}`"
        if command not in _JOBS:
            return found[0]
        if command == "run":
            return f"the job `{declared.job}`"
        given = declared.chosen | _config(command, arguments)
        return f"the job `{declared.job_of(_JOBS[command])}`{_with(given)}"

    return _COMMAND.sub(instead, text)


def _config(command: str, arguments: list[str]) -> dict[str, Any]:
    versions = [int(each) for each in arguments if each.isdigit()]
    if command == "rewind":
        return {"to": {"version": versions[0]}} if versions else {}
    if command == "replay":
        return dict(zip(("first", "last"), versions, strict=False))
    return {}


def _with(given: dict[str, Any]) -> str:
    if not given:
        return ""
    return f" with `{yaml.safe_dump(given, default_flow_style=True).strip()}`"


def job_filled_in(
    run: dg.DagsterRun, job: str, config: Mapping[str, Any]
) -> dict[str, dg.MetadataValue]:
    """Metadata that names ``job``, shows ``config``, and opens its Launchpad with it.

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


#: What is said of a key's column that says nothing itself.
_KEY = "of the record's key"

#: The columns that every table of ours has.
_OWN = {
    CHECKPOINT_COLUMN: "the ledger version whose row it is",
    "_eo_topic": "the topic of the record it was made of",
    "_eo_partition": "the Kafka partition of that record",
    "_eo_offset": "the offset of that record",
}


def topic_metadata(declared: DagsterPipeline, key: dg.AssetKey) -> dict[str, Any]:
    """Where a topic is and what its values and keys hold, as far as the declaration says."""
    source = declared.pipeline.source
    name = key.path[-1] if source.topic_pattern is None else source.topic_pattern
    return {
        "dagster/uri": f"kafka://{source.bootstrap_servers}/{name}",
        # a page leaves the line above out where it shows what was observed
        "bootstrap_servers": source.bootstrap_servers,
        "value_format": source.value_format,
        **({"schema_subject": source.subject} if source.by_registry(VALUE) else {}),
        **({"key_format": source.key_format} if source.key_format != "raw" else {}),
        **({"key_schema_subject": source.subject_of(KEY)} if source.by_registry(KEY) else {}),
        **_schema([_of_field(each) for each in _declared(source)]),
    }


def declared_columns(declared: DagsterPipeline) -> dict[str, Any]:
    """The table's columns before it is there. Of what a transform makes nobody knows."""
    fields = _untransformed(declared)
    return _schema([_of_field(each) for each in fields.values()]) | _lineage(declared, fields)


def written_columns(declared: DagsterPipeline, columns: Mapping[str, str] | None) -> dict[str, Any]:
    """The table's columns as a checkpoint wrote them, if it wrote rows."""
    if columns is None:
        return {}
    fields = {each.name: each for each in _declared(declared.pipeline.source)}
    told = {name: each.comment for name, each in fields.items()} | _OWN
    shown = [dg.TableColumn(name, kind, told.get(name)) for name, kind in columns.items()]
    known = {name: None for name in _untransformed(declared) if name in columns}
    return _schema(shown) | _lineage(declared, known)


def _declared(source: KafkaSource) -> tuple[Field, ...]:
    """The columns of values, and of keys, as far as the document says what they are."""
    return (*_of_value(source), *_of_key(source))


def _of_value(source: KafkaSource) -> Sequence[Field]:
    if source.value_format == "json":
        return fields_of(source.value_schema)
    if source.value_schema is None or source.value_format == "raw":
        return ()
    kind = kind_of(source.schema_type, source.message)
    return _of_shape(kind.shape_of(source.schema_text))


def _of_key(source: KafkaSource) -> Sequence[Field]:
    """With the names that its columns have."""
    if source.key_format == "text":
        return [Field(KEY_COLUMN, "STRING", comment=_KEY)]
    text = source.key_schema
    if text is None:
        return ()
    if source.key_format == "json" and not json_schema.is_one(text):
        return [_prefixed(source, each) for each in fields_of(text)]
    kind = source.schema_type_of(KEY)
    found = kind_of(kind, source.message_of(KEY)).shape_of(source.schema_text_of(KEY))
    fields = _of_shape(found)
    if plain_or_record(kind, text) != text:
        return [replace(each, comment=_KEY) for each in fields]
    return [_prefixed(source, each) for each in fields]


def _of_shape(shape: Shape) -> list[Field]:
    kinds = {name: str(part) for name, part in shape.parts}
    return [Field(name, kind if "<" in kind else kind.upper()) for name, kind in kinds.items()]


def _prefixed(source: KafkaSource, field: Field) -> Field:
    """A column of the key, which may be absent whatever its schema says."""
    comment = field.comment or _KEY
    return replace(field, name=f"{source.key_prefix}{field.name}", required=False, comment=comment)


def _untransformed(declared: DagsterPipeline) -> dict[str, Field]:
    """The fields of the records that are columns of the table, as they are; none where a transform
    may have made something else of them.
    """
    pipeline = declared.pipeline
    if pipeline.transform is not None:
        return {}
    return {each.name: each for each in _declared(pipeline.source)}


def _lineage(declared: DagsterPipeline, columns: Mapping[str, object]) -> dict[str, Any]:
    """Each column comes from the field of its name, of every topic."""
    if not columns:
        return {}
    by_column = {
        name: [dg.TableColumnDep(asset_key=key, column_name=name) for key in declared.topics]
        for name in columns
    }
    return {"dagster/column_lineage": dg.TableColumnLineage(by_column)}


def _schema(columns: list[dg.TableColumn]) -> dict[str, Any]:
    return {"dagster/column_schema": dg.TableSchema(columns=columns)} if columns else {}


def _of_field(found: Field) -> dg.TableColumn:
    constraints = dg.TableColumnConstraints(nullable=not found.required)
    return dg.TableColumn(found.name, found.type, found.comment, constraints)
