"""How a table is laid out: which transforms can be read off a file's own statistics."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from eo_pipeline.errors import ConfigError, RefusedError
from eo_pipeline.places import Place, parquet_source
from eo_pipeline.sinks.lake.types import LAYOUT_PREFIX

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


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
    """What stands for a text or bytes in the names of the folders that Spark lays files out in: as
    short as a file system wants it, and null for nothing but null. Nobody else sees these names.
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
    told = [_nulls(group, names.get(source)) for group in groups]
    if None in told:
        column = pq.read_table(parquet_source(path), columns=[source], partitioning=None)[source]
        nulls, ends = column.null_count, pc.min_max(column).as_py()
        read = ends["min"], ends["max"]
    else:
        nulls, read = sum(each for each in told if each), None
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
    found = chunk.statistics if chunk is not None else None
    if found is None or not found.has_null_count:
        return None
    nulls: int = found.null_count
    return nulls if found.has_min_max or nulls == group.num_rows else None


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
