"""Staged rows as add actions, for staged files and for files written from rows in memory."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any

from deltalake.transaction import AddAction

from eo_pipeline import _process
from eo_pipeline._lazy import pa, pq, pt
from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.delta.config import ROWS_FOLDER
from eo_pipeline.sinks.delta.layout import checked_value, folder_of, partition_value
from eo_pipeline.sinks.delta.types import TYPES
from eo_pipeline.sinks.lake.session import PublishedFiles, one_file_each
from eo_pipeline.sinks.lake.types import (
    is_wider,
    own_columns,
    refuse_unbounded_footer,
    refuse_unbounded_rows,
)
from eo_pipeline.staging.rows import StagedTable
from eo_pipeline.storage.paths import Place, is_below, parquet_source, relative_name, size_of

#: Columns with statistics: as many as Delta's own writer has (delta.dataSkippingNumIndexedCols).
COLUMNS_MAX = 32

#: Characters of text kept in a bound (delta-spark's default).
PREFIX = 32
_GREATEST = "\U0010ffff"
_MS = timedelta(milliseconds=1)
_LAST_MS = datetime(9999, 12, 31, 23, 59, 59, 999000)  # noqa: DTZ001 - compared without a zone


@dataclass
class _Bounds:
    """Statistics of one column in the row groups of a file. ``None``: not known."""

    nulls: int | None = 0
    low: Any = None
    high: Any = None
    is_known: bool = True

    def add(self, statistics: Any, rows: int) -> None:
        nulls = (
            statistics.null_count if statistics is not None and statistics.has_null_count else None
        )
        self.nulls = None if nulls is None or self.nulls is None else self.nulls + nulls
        if nulls == rows:
            return  # nothing but nulls: no bounds in this row group, and none needed
        if statistics is None or not statistics.has_min_max:
            self.is_known = False
            return
        low, high = statistics.min, statistics.max
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)


def stats_json(metadata: pq.FileMetaData, schema: pa.Schema) -> str:
    """The ``stats`` of an add action for a file with this footer and these columns."""
    low: dict[str, str | None] = {}
    high: dict[str, str | None] = {}
    nulls: dict[str, str | None] = {}
    for name, bounds in _columns(metadata, schema):
        if bounds.nulls is not None:
            nulls[name] = str(bounds.nulls)
        if bounds.is_known and bounds.low is not None:
            kind = schema.field(name).type
            low[name] = _text(kind, bounds.low, up=False)
            high[name] = _text(kind, bounds.high, up=True)
    return (
        f'{{"numRecords":{metadata.num_rows},"minValues":{_object(low)},'
        f'"maxValues":{_object(high)},"nullCount":{_object(nulls)}}}'
    )


def null_counts(metadata: pq.FileMetaData, schema: pa.Schema) -> dict[str, int | None]:
    """Count of nulls of each plain column, None where the footer does not say."""
    return {name: bounds.nulls for name, bounds in _columns(metadata, schema, len(schema))}


def _columns(
    metadata: pq.FileMetaData, schema: pa.Schema, limit: int = COLUMNS_MAX
) -> Iterator[tuple[str, _Bounds]]:
    wanted = {*schema.names[:limit], CHECKPOINT_COLUMN} & set(schema.names)
    leaves = metadata.schema
    for index in range(len(leaves)):
        leaf = leaves.column(index)
        # a path is not a name once there is a dot in it: then it is a nested column, or may be one
        if leaf.path in wanted and "." not in leaf.path and leaf.max_repetition_level == 0:
            bounds = _Bounds()
            for group in range(metadata.num_row_groups):
                piece = metadata.row_group(group)
                bounds.add(piece.column(index).statistics, piece.num_rows)
            yield leaf.path, bounds


def _text(kind: pa.DataType, value: Any, *, up: bool) -> str | None:
    """``value`` as JSON, None if it makes no certain bound."""
    if pt.is_integer(kind) and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if pt.is_string(kind) and isinstance(value, str):
        return _cut(value, up=up)
    if pt.is_decimal(kind) and isinstance(value, Decimal):
        return f"{value:f}"
    if pt.is_timestamp(kind) and isinstance(value, datetime):
        return _instant(value, zoned=kind.tz is not None, up=up)
    if pt.is_date(kind) and isinstance(value, date):
        return json.dumps(value.isoformat())
    return None


def _cut(text: str, *, up: bool) -> str | None:
    if len(text) <= PREFIX:
        return json.dumps(text)
    if not up:
        return json.dumps(text[:PREFIX])
    return None if text[PREFIX] == _GREATEST else json.dumps(text[:PREFIX] + _GREATEST)


def _instant(value: datetime, *, zoned: bool, up: bool) -> str | None:
    value = value.replace(tzinfo=None)
    whole = value.replace(microsecond=value.microsecond // 1000 * 1000)
    if up and whole != value:
        if whole >= _LAST_MS:
            return None
        whole += _MS
    return json.dumps(whole.isoformat(timespec="milliseconds") + ("Z" if zoned else ""))


def _object(texts: dict[str, str | None]) -> str:
    parts = [f"{json.dumps(name)}:{text}" for name, text in texts.items() if text is not None]
    return "{" + ",".join(parts) + "}"


def in_memory(rows: StagedTable) -> pa.Table:
    """Staged rows as one table in the types Delta has."""
    return _stored(
        rows.table if rows.table is not None else pa.Table.from_batches(rows.batches(), rows.schema)
    )


def _stored(table: pa.Table) -> pa.Table:
    stored = TYPES.table(table.select(own_columns(table.schema).names))
    refuse_unbounded_rows(stored, TYPES.store)
    return stored


def in_types_of(schema: pa.Schema, rows: pa.Table) -> pa.Table:
    """``rows`` in the types of the columns ``schema``, which are as wide or wider."""
    kinds = {field.name: field.type for field in schema}
    return rows.cast(pa.schema([(f.name, kinds.get(f.name, f.type)) for f in rows.schema]))


def is_narrower(schema: pa.Schema, table_schema: pa.Schema) -> bool:
    """Return whether a column of ``schema`` has fewer bits or digits than that of
    ``table_schema``: Delta has one type for all files of a table. A struct may lack fields,
    which are null then.
    """
    kinds = {field.name: field.type for field in table_schema}
    return any(f.name in kinds and _is_narrower(f.type, kinds[f.name]) for f in schema)


def _is_narrower(kind: pa.DataType, table_type: pa.DataType) -> bool:
    if pt.is_struct(kind) and pt.is_struct(table_type):
        return is_narrower(pa.schema(list(kind)), pa.schema(list(table_type)))
    if pt.is_list(kind) and pt.is_list(table_type):
        return _is_narrower(kind.value_type, table_type.value_type)
    if pt.is_map(kind) and pt.is_map(table_type):
        return _is_narrower(kind.item_type, table_type.item_type)
    return is_wider(table_type, kind)


@dataclass(frozen=True)
class AddActions:
    """Makes the actions that add staged rows to the table in ``root``."""

    root: Place
    partition_by: tuple[str, ...]
    #: columns of the table that may not be null
    required: frozenset[str] = frozenset()
    #: its columns, in the one form of each type
    table_schema: pa.Schema = field(default_factory=lambda: pa.schema([]))

    def of(self, staged: StagedTable, files: PublishedFiles) -> list[AddAction]:
        """One action a file. Rows in memory become ``files`` first; so does what is staged where
        the table's rows do not lie.

        Raises:
            RefusedError: a file is not what it should be, or a value cannot be stored.
        """
        paths = staged.paths()
        if staged.table is not None:
            table = in_types_of(self.table_schema, _stored(staged.table))
            parts = one_file_each(table, [table[name] for name in self.partition_by])
            paths = files.write(parts, self._folder)
        elif is_narrower(TYPES.schema(own_columns(staged.schema)), self.table_schema):
            # not by read_table, which takes the names of folders for columns
            sources = (pq.ParquetFile(parquet_source(path)) for path in paths)
            narrow = (in_types_of(self.table_schema, source.read()) for source in sources)
            paths = files.write(narrow, self._folder)
        elif self.partition_by or not all(is_below(p, self.root / ROWS_FOLDER) for p in paths):
            paths = files.link(paths, _process.each(self._folder_of_file, paths))
        is_ours = staged.table is not None
        return _process.each(partial(self._action, staged.sizes(), is_ours=is_ours), paths)

    def _action(self, sizes: Mapping[Place, int], path: Place, *, is_ours: bool) -> AddAction:
        size = sizes.get(path) or size_of(path)
        try:
            with pq.ParquetFile(parquet_source(path, size)) as file:
                schema = TYPES.schema(own_columns(file.schema_arrow))
                metadata = file.metadata
                values = self._values(file.read) if self.partition_by else {}
                partition_values = {
                    name: partition_value(name, value) for name, value in values.items()
                }
        except pa.ArrowException as error:
            raise RefusedError(f"the staged file {path} cannot be read: {error}") from error
        if not is_ours:
            refuse_unbounded_footer(metadata, TYPES.store)
        self._refuse_nulls(metadata, schema)
        columns = pa.schema([field for field in schema if field.name not in self.partition_by])
        return AddAction(
            path=relative_name(path, self.root),
            size=size or 0,
            partition_values=partition_values,
            modification_time=int(time.time() * 1000),
            data_change=True,
            stats=stats_json(metadata, columns),
        )

    def _refuse_nulls(self, metadata: pq.FileMetaData, schema: pa.Schema) -> None:
        counts = null_counts(metadata, schema)
        bad = [name for name in sorted(self.required) if counts.get(name, None) != 0]
        if bad:
            raise RefusedError(
                f"the table does not take null in {', '.join(bad)}, and the result has nulls "
                "there. Nothing was written; fill the column in the transform."
            )

    def _folder_of_file(self, path: Place) -> str:
        if not self.partition_by:
            return ""
        with pq.ParquetFile(parquet_source(path)) as file:
            return folder_of(self._values(file.read))

    def _folder(self, rows: pa.Table) -> str:
        return folder_of(self._values(rows.select))

    def _values(self, columns_of: Callable[[list[str]], pa.Table]) -> dict[str, Any]:
        """Return the partition values of a file's rows, one for each such column.

        Raises:
            RefusedError: they have not, or readers would not have it back.
        """
        columns = columns_of([*self.partition_by])
        return {name: self._only_value(name, columns[name]) for name in self.partition_by}

    def _only_value(self, name: str, column: pa.ChunkedArray) -> Any:
        values = column.unique().to_pylist()
        if len(values) != 1:
            raise RefusedError(
                f"a staged file holds {len(values)} values of the partition column {name!r}: it "
                "was staged for another layout. Nothing was published; the next run reads the "
                "ranges again."
            )
        checked_value(name, values[0])
        return values[0]
