"""Mapping of a result's columns to the parts of a Kafka record, and the types they may have.

Key, value and headers are made by Spark, inside the one job (:func:`project`), so that publishing
only sends bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from eo_pipeline._lazy import pa
from eo_pipeline.errors import ConfigError, RefusedError, SchemaChangeError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.arrow import JSON_FIELD
from eo_pipeline.sinks.columns import JsonRows, as_json_columns, column
from eo_pipeline.sinks.kafka.encoding import AgreedProtobuf, Schemas, by_workers

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType

    from eo_pipeline.sinks.columns import Unfit

#: Columns of a projected row. A result's own columns never begin with ``_eo_``.
VALUE = "_eo_value"
KEY = "_eo_key"
HEADERS = "_eo_headers"
TIMESTAMP = "_eo_timestamp"

#: Where a row came from; there unless the pipeline's lineage is off.
SOURCE_TOPIC = "_eo_topic"
SOURCE_PARTITION = "_eo_partition"
SOURCE_OFFSET = "_eo_offset"
LINEAGE_COLUMNS = (CHECKPOINT_COLUMN, SOURCE_TOPIC, SOURCE_PARTITION, SOURCE_OFFSET)


class Partitioner(StrEnum):
    """Choice of the topic's partition for a row.

    ``key``: the one Java's default partitioner gives its key, any one without a key. ``source``:
    the one it was read from. ``assigner``: see :mod:`eo_pipeline.sinks.kafka.producer`.
    """

    KEY = "key"
    SOURCE = "source"
    ASSIGNER = "assigner"


def is_projected(columns: Iterable[str]) -> bool:
    """True for rows that :mod:`eo_pipeline.sinks.kafka.records` made."""
    return VALUE in columns


@dataclass(frozen=True)
class Layout:
    """Columns by name. ``value`` None: all columns that are nothing else, as one object. What is
    ``encoded`` (``value``, ``key``) is written with the ``schemas`` agreed on.
    """

    key: str | None = None
    value: str | None = None
    headers: str | Mapping[str, str] | None = None
    timestamp: str | None = None
    partitioning: Partitioner = Partitioner.KEY
    encoded: frozenset[str] = frozenset()
    schemas: Schemas = field(default_factory=Schemas)

    @property
    def lineage_in_headers(self) -> bool:
        """The value has no room for it, or a schema that is other people's affair."""
        return self.value is not None or "value" in self.encoded

    @property
    def header_columns(self) -> tuple[str, ...]:
        if isinstance(self.headers, str):
            return (self.headers,)
        return tuple((self.headers or {}).values())

    def payload(self, columns: Sequence[str]) -> list[str]:
        """The columns that go into a value which is an object."""
        taken = {self.key, self.timestamp, *self.header_columns}
        if self.lineage_in_headers:
            taken |= {*LINEAGE_COLUMNS}
        return [name for name in columns if name not in taken]

    @property
    def is_document(self) -> bool:
        """A record is one object, perhaps with a key, and no more."""
        parts = (self.value, self.headers, self.timestamp)
        return all(part is None for part in parts) and not self.encoded

    def json_rows(self, columns: Sequence[str]) -> JsonRows:
        """JSON objects that :func:`project` makes of these columns, where :attr:`is_document`."""
        key = {} if self.key is None else {KEY: self.key}
        kept = {name: name for name in columns if name in LINEAGE_COLUMNS}
        return JsonRows(VALUE, self.payload(columns), key | kept, as_bytes=KEY if key else None)

    def value_type(self, columns: StructType) -> DataType:
        """The type of a value of a result with ``columns``."""
        from pyspark.sql.types import StructType

        if self.value is not None:
            return columns[self.value].dataType
        return StructType([columns[name] for name in self.payload(columns.names)])

    def unfit(self) -> Iterator[tuple[str, Unfit]]:
        """Conditions that the agreed schemas refuse, each with its column."""
        if value := self.schemas.value:
            yield from value.unfit(self.value)
        if key := self.schemas.key:
            yield from key.unfit(self.key)

    def check_columns(self, columns: Sequence[str]) -> None:
        """Refuse a result that lacks what the configuration names, or needs.

        Raises:
            ConfigError: names the field and the column.
        """
        self.check_named(columns)
        if self.partitioning is not Partitioner.KEY:
            check_origin(columns, f"sink.partitioning: {self.partitioning} needs")

    def check_named(self, columns: Sequence[str]) -> None:
        """Refuse a result that lacks a column which the configuration names.

        Raises:
            ConfigError: names the field and the column.
        """
        fields = {
            "key": [self.key],
            "value": [self.value],
            "timestamp": [self.timestamp],
            "headers": self.header_columns,
        }
        for setting, names in fields.items():
            absent = [name for name in names if name is not None and name not in columns]
            if absent:
                raise ConfigError(f"sink.{setting}: the result has no column {', '.join(absent)}")

    def check_arrow(self, schema: pa.Schema) -> None:
        """Refuse staged columns of a type that a record has no place for.

        Raises:
            SchemaChangeError: names the column.
            ConfigError: a column the configuration names is absent.
            RefusedError: they are to be Avro or Protobuf.
        """
        if is_projected(schema.names):
            return
        if self.encoded:
            raise RefusedError(
                "sink.value_format or key_format avro or protobuf: these are made by Spark, and "
                "these rows were staged without it. Nothing was published."
            )
        self.check_columns(schema.names)
        for name in filter(None, (self.key, self.value)):
            _check(schema.field(name), _is_bytes, "text, binary or an integer")
        if isinstance(self.headers, str):
            _check(schema.field(self.headers), _is_headers, "an array of (key, value) structs")
        elif self.headers:
            for name in self.header_columns:
                _check(schema.field(name), _is_bytes, "text, binary or an integer")
        if self.timestamp is not None:
            _check(schema.field(self.timestamp), pa.types.is_timestamp, "a timestamp")
        if self.value is None:
            for name in self.payload(schema.names):
                _check(schema.field(name), _has_json, "a type that JSON can hold")


def has_origin(columns: Iterable[str]) -> bool:
    """True if rows say which Kafka partition they came from."""
    return {SOURCE_TOPIC, SOURCE_PARTITION} <= set(columns)


def check_origin(columns: Iterable[str], needs: str) -> None:
    """Refuse a result without :func:`has_origin`.

    Raises:
        ConfigError: says what ``needs`` it.
    """
    if not has_origin(columns):
        raise ConfigError(f"{needs} to know where a row came from; keep the pipeline's lineage on")


def _check(field: pa.Field, fits: Callable[[pa.DataType], bool], wanted: str) -> None:
    if not fits(field.type):
        raise SchemaChangeError(
            f"column {field.name!r} must be {wanted}, it is {field.type}. Nothing was published; "
            "cast it in the transform."
        )


def _is_bytes(data_type: pa.DataType) -> bool:
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)
    more = (pa.types.is_large_binary, pa.types.is_integer)
    return any(is_kind(data_type) for is_kind in (*kinds, *more))


def _is_headers(data_type: pa.DataType) -> bool:
    if not pa.types.is_list(data_type) or not pa.types.is_struct(data_type.value_type):
        return False
    return {field.name for field in data_type.value_type} == {"key", "value"}


#: Names of their tests in ``pyarrow.types``.
_JSON_KINDS = (
    "is_boolean",
    "is_integer",
    "is_floating",
    "is_decimal",
    "is_date",
    "is_timestamp",
    "is_null",
    "is_string",
    "is_large_string",
    "is_binary",
    "is_large_binary",
)


def _has_json(data_type: pa.DataType) -> bool:
    if pa.types.is_struct(data_type):
        return all(_has_json(field.type) for field in data_type)
    if pa.types.is_map(data_type):
        key = data_type.key_type
        return (pa.types.is_string(key) or pa.types.is_integer(key)) and _has_json(
            data_type.item_type
        )
    if pa.types.is_list(data_type) or pa.types.is_large_list(data_type):
        return _has_json(data_type.value_type)
    return any(getattr(pa.types, is_kind)(data_type) for is_kind in _JSON_KINDS)


#: Spark types of a key, a header or a whole value.
_BYTES = frozenset({"string", "binary", "tinyint", "smallint", "int", "bigint"})


def project(df: DataFrame, layout: Layout) -> DataFrame:
    """``df`` as the parts of Kafka records, and the lineage. Lazy.

    Raises:
        ConfigError: a column the configuration names is absent.
        SchemaChangeError: ... or has a type a record has no place for.
    """
    layout.check_columns(df.columns)
    types = {field.name: field.dataType.simpleString() for field in df.schema}
    _check_types(types, layout)
    agreed = {VALUE: layout.schemas.value, KEY: layout.schemas.key}
    protobuf = {name: a for name, a in agreed.items() if isinstance(a, AgreedProtobuf)}
    return by_workers(_projected(df, layout, types), protobuf)


def _projected(df: DataFrame, layout: Layout, types: Mapping[str, str]) -> DataFrame:
    """Project the columns; those that workers encode are structs yet."""
    kept = [name for name in df.columns if name in LINEAGE_COLUMNS]
    parts = [*_parts(layout, types), *(column(name) for name in kept)]
    if layout.schemas.value is not None:
        value = layout.schemas.value.encoded(layout.value)
        return df.select(value.alias(VALUE), *parts)
    if layout.value is not None:
        return df.select(_as_bytes(layout.value, types).alias(VALUE), *parts)
    from pyspark.sql import functions as F

    body = F.struct(*map(column, layout.payload(df.columns)))
    wrapped = as_json_columns(df.select(body.alias(VALUE), *parts), [VALUE])
    return wrapped.withColumn(VALUE, F.col(VALUE)[JSON_FIELD])


def _parts(layout: Layout, types: Mapping[str, str]) -> list[Column]:
    parts = []
    if layout.key is not None:
        agreed = layout.schemas.key
        key = agreed.encoded(layout.key) if agreed else _as_bytes(layout.key, types)
        parts.append(key.alias(KEY))
    if layout.timestamp is not None:
        parts.append(column(layout.timestamp).alias(TIMESTAMP))
    if isinstance(layout.headers, str):
        parts.append(column(layout.headers).alias(HEADERS))
    elif layout.headers:
        parts.append(_headers(layout.headers, types).alias(HEADERS))
    return parts


def _headers(names: Mapping[str, str], types: Mapping[str, str]) -> Column:
    from pyspark.sql import functions as F

    return F.array(
        *(
            F.struct(F.lit(header).alias("key"), _as_bytes(column, types).alias("value"))
            for header, column in names.items()
        )
    )


def _as_bytes(name: str, types: Mapping[str, str]) -> Column:
    value = column(name)
    # an integer's own cast to binary is its memory, not its digits
    return value if types[name] == "binary" else value.cast("string").cast("binary")


def _check_types(types: Mapping[str, str], layout: Layout) -> None:
    mapped = layout.header_columns if not isinstance(layout.headers, str) else ()
    key = None if layout.schemas.key else layout.key
    value = None if layout.schemas.value else layout.value
    for name in filter(None, (key, value, *mapped)):
        if types[name].partition(" ")[0] not in _BYTES:
            raise SchemaChangeError(
                f"column {name!r} is {types[name]}; a key, a header or a whole value must be text, "
                "binary or an integer. Nothing was read; cast it in the transform."
            )
    if layout.timestamp is not None and not types[layout.timestamp].startswith("timestamp"):
        raise SchemaChangeError(
            f"sink.timestamp: column {layout.timestamp!r} is {types[layout.timestamp]}, not a "
            "timestamp. Nothing was read; cast it in the transform."
        )
