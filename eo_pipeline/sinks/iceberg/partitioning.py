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

        column = df[self.source]
        if self.transform == IDENTITY:
            return column
        if dict(df.dtypes)[self.source] == "timestamp":
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


def refuse_absent(partition_by: tuple[PartitionField, ...], columns: list[str]) -> None:
    """Raise ConfigError if the result lacks a column that the table is laid out by."""
    absent = [p.source for p in partition_by if p.source not in columns]
    if absent:
        raise ConfigError(f"sink.partition_by: the result has no column {', '.join(absent)}")


def refuse_unclear(path: Place, sources: list[str]) -> None:
    """Raise RefusedError unless the file's footer shows the one value of each partition column.

    PyIceberg takes the partition from the bounds. Where there are none it takes null, without a
    word; and rows with null beside rows with a value it puts where the value belongs.
    """
    with pq.ParquetFile(parquet_source(path)) as file:
        metadata = file.metadata
        names = {metadata.schema.column(i).path: i for i in range(metadata.num_columns)}
        for source in sources:
            nulls = 0
            for group in range(metadata.num_row_groups):
                nulls += _nulls(metadata.row_group(group), names.get(source))
            if nulls not in (0, metadata.num_rows):
                raise RefusedError(
                    f"the staged file {path} does not show one value of {source!r}, by which the "
                    "table is partitioned: its statistics are missing, or it mixes nulls and "
                    "values. Nothing was published; partition by another column."
                )


def _nulls(group: Any, index: int | None) -> int:
    """Nulls in a row group; where the bounds are not known, a number that spoils any sum."""
    unknown = -(2**62)
    found = group.column(index).statistics if index is not None else None
    if found is None or not found.has_null_count:
        return unknown
    nulls: int = found.null_count
    has_bounds = found.has_min_max or nulls == group.num_rows
    return nulls if has_bounds else unknown


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
