"""Parquet files as manifest entries, built from one read of each file's footer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.io.pyarrow import (
    DataFileStatistics,
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import partition_record_value
from pyiceberg.table import TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import DecimalType
from pyiceberg.utils.properties import property_as_bool

from eo_pipeline._lazy import pa, pq
from eo_pipeline.errors import RefusedError, SchemaChangeError
from eo_pipeline.sinks.iceberg.config import untold_bounds
from eo_pipeline.sinks.iceberg.fields import ids_in, ids_of
from eo_pipeline.sinks.iceberg.types import TYPES
from eo_pipeline.sinks.lake.types import refuse_unbounded_footer
from eo_pipeline.storage.paths import Place, RemotePath, parquet_source, size_of


@dataclass(frozen=True)
class Added:
    """``file`` of a manifest; whether its columns have ids of their own."""

    file: DataFile
    has_ids: bool


class NewFiles:
    """Files that are to become those of a table, which has this ``metadata`` then."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._metadata = metadata
        self._schema = metadata.schema()
        #: of each column, and of each within one
        self.ids = ids_of(self._schema)
        self._plan = compute_statistics_plan(self._schema, metadata.properties)
        self._paths = parquet_path_to_id_mapping(self._schema)
        fields = metadata.spec().fields
        self.sources = [self._schema.find_field(field.source_id).name for field in fields]

    def added(self, place: Place, size: int | None = None) -> Added:
        """``place`` as a manifest names it; ``size`` in bytes, if known.

        Raises:
            RefusedError: the table cannot take it as it is.
        """
        size = size_of(place) if size is None else size
        with pq.ParquetFile(parquet_source(place, size)) as file:
            footer = file.metadata
            refuse_unbounded_footer(footer, TYPES.store)
            has_ids = self._has_ids(place, footer.schema.to_arrow_schema())
            read = [untold_bounds(place, file, source) for source in self.sources]
        plan = self._plan_of(footer.schema)
        statistics = data_file_statistics_from_parquet_metadata(footer, plan, self._paths)
        self._refuse_nulls(place, statistics.null_value_counts)
        data_file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=uri_of(place),
            file_format=FileFormat.PARQUET,
            partition=self._partition(place, statistics, read),
            file_size_in_bytes=size,
            sort_order_id=None,
            spec_id=self._metadata.default_spec_id,
            equality_ids=None,
            key_metadata=None,
            **statistics.to_serialized_dict(),
        )
        return Added(data_file, has_ids)

    def _plan_of(self, file: pq.ParquetSchema) -> dict[int, StatisticsCollector]:
        """A decimal of fewer digits than the table's has another form in a file."""
        plan = dict(self._plan)
        for i in range(len(file)):
            column, field_id = file.column(i), self._paths[file.column(i).path]
            if isinstance(plan[field_id].iceberg_type, DecimalType):
                file_type = DecimalType(column.precision, column.scale)
                plan[field_id] = replace(plan[field_id], iceberg_type=file_type)
        return plan

    def _partition(
        self, place: Place, statistics: DataFileStatistics, read: Sequence[tuple[Any, Any] | None]
    ) -> Record:
        values, spec = [], self._metadata.spec()
        for field, bounds in zip(spec.fields, read, strict=True):
            kept = statistics.column_aggregates.get(field.source_id)
            recorded = (kept.current_min, kept.current_max) if kept else (None, None)
            transform = field.transform.transform(self._schema.find_type(field.source_id))
            least, greatest = (
                transform(partition_record_value(field, value, self._schema))
                for value in bounds or recorded
            )
            if least != greatest:
                raise RefusedError(
                    f"the staged file {place} has more than one partition: its {field.name} is "
                    f"{least!r} to {greatest!r}. Nothing was published."
                )
            values.append(least)
        return Record(*values)

    def _has_ids(self, place: Place, columns: pa.Schema) -> bool:
        field_ids = dict(ids_in(columns))
        if any(field_id is not None for field_id in field_ids.values()):
            if other := [
                path for path, field_id in field_ids.items() if self.ids.get(path) != field_id
            ]:
                raise RefusedError(
                    f"{place} was staged before {_in_words(other)} became other columns of the "
                    "table. Nothing was published; the next run reads the ranges again."
                )
            return True
        mapping = self._metadata.name_mapping() or self._schema.name_mapping
        try:
            named = dict(ids_in(pyarrow_to_schema(columns, mapping).as_arrow()))
        except ValueError:  # it lacks a name
            named = {}
        if other := [path for path in field_ids if self.ids.get(path) != named.get(path, -1)]:
            raise SchemaChangeError(
                f"{place} has no column ids, and the table's name mapping assigns "
                f"other ids to {_in_words(other)}. Nothing was published. Rename them in the table."
            )
        return False

    def _refuse_nulls(self, place: Place, nulls: dict[int, int]) -> None:
        never = [f.name for f in self._schema.fields if f.required and nulls.get(f.field_id)]
        if never:
            raise RefusedError(
                f"{place} has null in {', '.join(map(repr, never))}, where the table takes none. "
                "Nothing was published."
            )


def uri_of(place: Place) -> str:
    """As Iceberg's metadata names a file or a folder: nothing in it is encoded."""
    return str(place) if isinstance(place, RemotePath) else f"file://{place}"


def append(transaction: Transaction, files: Iterable[Added], summary: dict[str, str]) -> None:
    """A snapshot with ``files`` too; one without any as well."""
    files = [*files]
    if not all(file.has_ids for file in files):
        _know_by_name(transaction)
    update = transaction.update_snapshot(snapshot_properties=summary)
    merges = property_as_bool(
        transaction.table_metadata.properties,
        TableProperties.MANIFEST_MERGE_ENABLED,
        TableProperties.MANIFEST_MERGE_ENABLED_DEFAULT,
    )
    with update.merge_append() if merges else update.fast_append() as appended:
        for file in files:
            appended.append_data_file(file.file)


def _know_by_name(transaction: Transaction) -> None:
    metadata = transaction.table_metadata
    if metadata.name_mapping() is None:
        mapping = metadata.schema().name_mapping.model_dump_json()
        transaction.set_properties({TableProperties.DEFAULT_NAME_MAPPING: mapping})


def _in_words(paths: Iterable[tuple[str, ...]]) -> str:
    return ", ".join(repr(".".join(path)) for path in paths)
