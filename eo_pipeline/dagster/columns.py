"""What topic and table hold, column by column, as Dagster's catalog shows it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import dagster as dg

from eo_pipeline.dagster.names import DagsterPipeline
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.source import json_schema
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.ddl import Field, fields_of
from eo_pipeline.source.kinds import kind_of, plain_or_record
from eo_pipeline.source.parts import KEY, KEY_COLUMN, VALUE
from eo_pipeline.source.shapes import Shape

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
