"""The configuration of an Iceberg table that follows Kafka topics."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, model_validator

from eo_pipeline.config.settings import Settings
from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.sinks.columns import ColumnLimits
from eo_pipeline.sinks.config import Guarantee, StagingFolders, each_once
from eo_pipeline.sinks.iceberg.types import TYPES, is_read_as_it_stands
from eo_pipeline.sinks.lake.config import STAGING_FOLDER, FolderSink
from eo_pipeline.sinks.lake.types import LAYOUT_PREFIX
from eo_pipeline.storage.config import Storage, checked_table
from eo_pipeline.storage.paths import Place, local_folder, parquet_source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType


IDENTITY = "identity"
_TIME_TRANSFORMS = ("year", "month", "day", "hour")
_FORM = re.compile(r"(?:(?P<transform>\w+)\((?P<source>[^(),]+)\)|(?P<plain>[^(),]+))")

#: A text that does for the name of a folder.
_PLAIN = r"\A[A-Za-z0-9_-]{1,60}\z"

_SECONDS_OF_AN_HOUR = 3600
_HOURS_OF_A_DAY = 24


@dataclass(frozen=True)
class PartitionField:
    """One partition field: ``column`` as it is, or ``day(column)`` ..."""

    source: str
    transform: str = IDENTITY

    @classmethod
    def parse(cls, text: str) -> PartitionField:
        """From ``carrier`` or ``day(time_hour)``.

        Raises:
            ValueError: not of that form, or a transform that a file's statistics do not show.
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"{text!r} is neither a column nor transform(column)")
        if match["plain"]:
            return cls(match["plain"].strip())
        transform = match["transform"].lower()
        if transform not in _TIME_TRANSFORMS:
            raise ValueError(
                f"{text!r}: only a column itself and {', '.join(_TIME_TRANSFORMS)} are possible; "
                f"the value of {transform} cannot be told from a Parquet file's statistics, by "
                "which staged files are added to the table"
            )
        return cls(match["source"].strip(), transform)

    def __str__(self) -> str:
        return self.source if self.transform == IDENTITY else f"{self.transform}({self.source})"

    @property
    def field_name(self) -> str:
        """The partition field's name, as Iceberg's own DDL gives it."""
        return self.source if self.transform == IDENTITY else f"{self.source}_{self.transform}"

    @property
    def layout_column(self) -> str:
        return LAYOUT_PREFIX + self.field_name

    def layout(self, df: DataFrame) -> Column:
        """The value that rows of one partition share, whatever the session's time zone: Iceberg
        counts in UTC (table spec, "Partition Transforms").
        """
        from pyspark.sql import functions as F

        column, kind = df[self.source], dict(df.dtypes)[self.source]
        if self.transform == IDENTITY:
            return _text_of(column) if kind in ("string", "binary") else column
        if kind == "timestamp":
            hours = F.floor(F.unix_seconds(column) / _SECONDS_OF_AN_HOUR)
            date = F.date_from_unix_date(F.floor(hours / _HOURS_OF_A_DAY).cast("int"))
        else:
            date = F.to_date(column)
            hours = F.concat_ws(" ", date, F.hour(column)) if self.transform == "hour" else date
        shapes = {
            "year": F.year(date),
            "month": F.trunc(date, "month"),
            "day": date,
            "hour": hours,
        }
        return shapes[self.transform]


def _text_of(column: Column) -> Column:
    """Text for a value in the names of the folders that Spark lays files out in: as short as a file
    system wants it, and null for nothing but null. Nobody else sees these names.
    """
    from pyspark.sql import functions as F

    plain = F.concat(F.lit("t"), column.cast("string"))
    return F.when(column.rlike(_PLAIN), plain).otherwise(F.sha2(column.cast("binary"), 256))


def refuse_absent(partition_by: tuple[PartitionField, ...], columns: list[str]) -> None:
    """Raise ConfigError if the result lacks a column that the table is laid out by."""
    absent = [p.source for p in partition_by if p.source not in columns]
    if absent:
        raise ConfigError(f"sink.partition_by: the result has no column {', '.join(absent)}")


def untold_bounds(path: Place, file: pq.ParquetFile, source: str) -> tuple[Any, Any] | None:
    """The least and the greatest value of a partition column, if the footer does not tell them: it
    has none of texts of more than some kilobytes. None if it does.

    Raises:
        RefusedError: rows with null are there and rows with a value. The partition is taken from
            the bounds, and all of them would be put where the value belongs.
    """
    footer = file.metadata
    names = {footer.schema.column(i).path: i for i in range(footer.num_columns)}
    groups = map(footer.row_group, range(footer.num_row_groups))
    null_counts = [_nulls(group, names.get(source)) for group in groups]
    if None in null_counts:
        column = pq.read_table(parquet_source(path), columns=[source], partitioning=None)[source]
        nulls, ends = column.null_count, pc.min_max(column).as_py()
        read = ends["min"], ends["max"]
    else:
        nulls, read = sum(count for count in null_counts if count), None
    if nulls not in (0, footer.num_rows):
        raise RefusedError(
            f"the staged file {path} mixes nulls and values of {source!r}, by which the table is "
            "partitioned. Nothing was published; the next run reads the ranges again."
        )
    return read


def _nulls(group: Any, index: int | None) -> int | None:
    """Nulls in a row group, if it is told how many, and the bounds of the rest."""
    # while this is held: what is said of a column does not outlive it
    chunk = group.column(index) if index is not None else None
    statistics = chunk.statistics if chunk is not None else None
    if statistics is None or not statistics.has_null_count:
        return None
    nulls: int = statistics.null_count
    return nulls if statistics.has_min_max or nulls == group.num_rows else None


def partition_values(column: pa.ChunkedArray, transform: str) -> pa.ChunkedArray:
    """Equal for rows of one partition. PyIceberg's own needs a further package (pyiceberg-core)."""
    return column if transform == IDENTITY else pc.floor_temporal(column, unit=transform)


def refuse_alike(rows: pa.Schema, partition_by: tuple[PartitionField, ...]) -> None:
    """Raise ConfigError if a table would be laid out by two decimals of one type: PyIceberg defines
    that type twice in its manifests, which Avro forbids, and Spark and DuckDB do not read on.
    """
    kinds: dict[pa.DataType, str] = {}
    for name in (field.source for field in partition_by):
        kind = rows.field(name).type
        if pt.is_decimal(kind) and kinds.setdefault(kind, name) != name:
            raise ConfigError(
                f"sink.partition_by: {kinds[kind]!r} and {name!r} are both {kind}, and neither "
                "Spark nor DuckDB would read the table. Nothing was published; lay it out by one "
                "of them, or declare the other with one more digit."
            )


#: Below the table's location: rows, where readers and clean-ups look.
ROWS_FOLDER = "data/eo_rows"


def _checked_table(name: str) -> str:
    if len(parts := name.split(".")) < 2 or not all(parts):
        raise ValueError(f"{name!r} is not of the form namespace.table")
    return name


def _checked_partitioning(texts: tuple[str, ...]) -> tuple[str, ...]:
    each_once(tuple(PartitionField.parse(text).field_name for text in texts))
    return texts


def _local(warehouse: Any) -> Any:
    """A folder, for the embedded catalog: a file in a bucket is no database."""
    if not isinstance(warehouse, str):
        return warehouse
    if (folder := local_folder(warehouse)) is None:
        raise ValueError(
            f"{warehouse!r} is no folder, and the embedded catalog is a file in it. Give the "
            "catalog that the table is registered in: catalog: {name: ..., properties: {type: sql "
            f"or rest, uri: ..., warehouse: {warehouse!r}}}}}"
        )
    return folder if urlsplit(warehouse).scheme else Path(warehouse)


class IcebergCatalog(Settings):
    """A PyIceberg catalog by name and properties, as ``.pyiceberg.yaml`` has them.

    Args:
        name: PyIceberg's name for it; with no ``properties`` its own configuration is read.
        properties: ``type``, ``uri``, ``token`` ... Values are never shown.
    """

    name: str
    properties: Mapping[str, SecretStr] = Field(default_factory=dict)

    def values(self) -> dict[str, str]:
        return {key: value.get_secret_value() for key, value in self.properties.items()}

    @property
    def warehouse(self) -> str | None:
        """Folder of the tables by default, if the catalog says so: to a REST catalog the name of a
        warehouse may mean something else.
        """
        values = self.values()
        warehouse = values.get("warehouse")
        is_rest = values.get("type", "rest" if "http" in values.get("uri", "") else "") == "rest"
        if warehouse is None or (
            is_rest and "://" not in warehouse and not warehouse.startswith("/")
        ):
            return None
        return warehouse


class IcebergSink(FolderSink):
    """An Iceberg table, with the ledger in a hidden folder ``_eo_ledger`` at its location.

    Args:
        table: ``namespace.table``. Created together with its first rows.
        catalog: where the table is registered. Without one: an SQL catalog in a SQLite file
            ``catalog.db`` in the ``warehouse``, for one machine.
        warehouse: the folder of the embedded catalog and its tables.
        location: the table's folder, or ``s3://bucket/path``. Without one:
            ``<warehouse>/<namespace>/<table>``, the warehouse being the catalog's own property if
            that is a place. Spark and this process must both reach it.
        mode: only ``append``. For upserts by key use ``type: delta``.
        partition_by: columns, or ``year|month|day|hour(column)``; used when the table is created,
            and then the same as the table's.
        ledger_table: with ``tables`` only: the Iceberg table whose commits carry the ledger;
            default: ``<pipeline>_eo_ledger`` in their namespace.
        storage: connection settings of the bucket; overrides the pipeline's ``storage``.
    """

    type: Literal["iceberg"] = "iceberg"
    table: Annotated[str, AfterValidator(_checked_table)]
    catalog: IcebergCatalog | None = None
    warehouse: Annotated[Path, BeforeValidator(_local)] = Path(".eo/warehouse")
    location: Annotated[str, AfterValidator(checked_table)] | None = None
    mode: Literal["append"] = "append"
    partition_by: Annotated[tuple[str, ...], AfterValidator(_checked_partitioning)] = ()
    ledger_table: Annotated[str, AfterValidator(_checked_table)] | None = None
    storage: Storage | None = None

    guarantee: ClassVar[Guarantee] = Guarantee.EXACTLY_ONCE
    copies_rows: ClassVar[bool] = False
    marks_files: ClassVar[bool] = True
    session_class: ClassVar[str] = "eo_pipeline.sinks.iceberg.session:IcebergSession"
    tables_session_class: ClassVar[str | None] = (
        "eo_pipeline.sinks.iceberg.tables:IcebergTablesSession"
    )
    tables_within: ClassVar[str | None] = "namespace"
    of_one_table: ClassVar[frozenset[str]] = frozenset({"location", "partition_by"})
    extra: ClassVar[str | None] = "iceberg"

    @model_validator(mode="before")
    @classmethod
    def _no_upsert(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("mode") == "upsert":
            raise ValueError(
                "mode: upsert is not possible here: PyIceberg finds the rows to replace by one "
                "condition a row and knows no order among them, so that an older record could "
                "overwrite a newer one. Use type: delta or type: postgres"
            )
        return values

    @model_validator(mode="after")
    def _has_a_folder(self) -> Self:
        warehouse = self._warehouse()
        if self.location is None and warehouse is None:
            raise ValueError(
                "location: required (folder of the table or path in a bucket), because the "
                "catalog has no warehouse path"
            )
        if self.location is None and warehouse is not None:
            try:
                checked_table(warehouse)
            except ValueError as error:
                raise ValueError(f"{self.folder_field}: {error}") from error
        return self

    def _warehouse(self) -> str | None:
        return str(self.warehouse.absolute()) if self.catalog is None else self.catalog.warehouse

    @property
    def root(self) -> Place:
        storage = self.storage or Storage()
        if self.location is not None:
            return storage.place(self.location)
        warehouse = self._warehouse()
        assert warehouse is not None, "checked when the sink was made"
        place = storage.place(warehouse)
        for name in self.identifier:
            place = place / name
        return place

    def reached_by(self, storage: Storage) -> Self:
        return self if self.storage else self.model_copy(update={"storage": storage})

    @property
    def folder_field(self) -> str:
        """The field that :attr:`root` comes from."""
        if self.location is not None:
            return "location"
        return "warehouse" if self.catalog is None else "catalog.properties.warehouse"

    @property
    def identifier(self) -> tuple[str, ...]:
        return tuple(self.table.split("."))

    @classmethod
    def table_fields(cls, fields: Mapping[str, Any], pipeline: str, name: str) -> dict[str, Any]:
        """``namespace`` names that of all tables, unless a table's own name has one."""
        shared = dict(fields)
        namespace = shared.pop("namespace", None)
        if not namespace:
            raise ValueError("namespace: required with tables; the ledger is in it too")
        shared.setdefault("ledger_table", f"{namespace}.{pipeline}_eo_ledger")
        qualified = name if "." in name else f"{namespace}.{name}"
        return super().table_fields(shared, pipeline, qualified)

    def one_of_several(self) -> Self:
        """Refuse a table whose ledger has no place; see ``Sink``."""
        if self._warehouse() is None:
            raise ValueError("tables need a warehouse path, where the ledger is")
        if self.table == self.ledger_table:
            raise ValueError(f"ledger_table: {self.table} is one of the tables")
        return self

    @property
    def ledger_sink(self) -> IcebergSink:
        if self.ledger_table is None:
            return self
        of_ledger = {"table": self.ledger_table, "location": None, "partition_by": ()}
        return self.model_copy(update=of_ledger)

    @property
    def tables_written(self) -> tuple[str, ...]:
        return self.table, str(self.root)

    @property
    def partition_fields(self) -> tuple[PartitionField, ...]:
        return tuple(map(PartitionField.parse, self.partition_by))

    @property
    def table_name(self) -> str:
        return self.table

    @property
    def partition_columns(self) -> tuple[str, ...]:
        return tuple(field.layout_column for field in self.partition_fields)

    def describe(self) -> dict[str, str]:
        return {"kind": "iceberg", "uri": self.root.as_uri(), "table": self.table}

    def staging_folders(self) -> StagingFolders:
        """Promises in a hidden folder, rows in a visible one: once a rewind took a file out of the
        table, only there does ``remove_orphan_files`` find it.
        """
        return StagingFolders(self.root / STAGING_FOLDER, self.root / ROWS_FOLDER)

    def gives_back(self, data_type: DataType) -> bool:
        """Without what PyIceberg 0.12 reads otherwise than it stands in the files: an array that is
        null in a struct comes back empty.
        """
        return super().gives_back(data_type) and is_read_as_it_stands(data_type)

    def column_limits(self) -> ColumnLimits:
        """No NaN in a column whose values are partitions."""
        numbers = tuple(p.source for p in self.partition_fields if p.transform == IDENTITY)
        return ColumnLimits(numbers=numbers)

    def project(self, df: DataFrame) -> DataFrame:
        """Adds the columns for laying out; changes no type.

        Raises:
            SchemaChangeError: a column has a type that Iceberg has nothing for.
            ConfigError: a column that the table is laid out by is not there.
        """
        TYPES.refuse_unknown(df)
        refuse_absent(self.partition_fields, df.columns)
        copies = {field.layout_column: field.layout(df) for field in self.partition_fields}
        return df.withColumns(copies) if copies else df
