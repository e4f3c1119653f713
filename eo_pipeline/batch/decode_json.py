"""JSON to columns, and the errors of JSON records. Lazy Spark expressions only.

Spark's reader parses the texts; or a native function does, in one pass over the bytes
(``OrdinaryJson.java``), and leaves records that may be bad to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from eo_pipeline.batch.decoder import LOST, PARSED, TOMBSTONE, UNKNOWN, Decoder
from eo_pipeline.batch.json_values import (
    MARKS,
    READING,
    braced,
    converted,
    faults,
    is_marked,
    leaf_type,
    marked,
    shape_fault,
    text_faults,
)
from eo_pipeline.batch.spark_schema import value_schema
from eo_pipeline.batch.unknown_fields import (
    has_structs,
    is_twice,
    kept_fields,
    keys_if_needed,
    nested_names,
    unknown_fields,
)
from eo_pipeline.formats import wire_format
from eo_pipeline.formats.schema_diff import ChangeKind, Policy, Shape, unreadable
from eo_pipeline.formats.wire_format import (
    UNKNOWN_COLUMN,
    WriterSchemas,
    first_match,
    has_new_symbol,
)
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.spark.native_jar import FUNCTION_CATALOG, has_function

#: Columns of the text of a record, and of its unknown fields as JSON.
TEXT = "_eo_text"
KEPT = "_eo_kept"

#: Columns that only :class:`JsonDecoder` needs.
WORKING = ("_eo_fast", "_eo_marks", "_eo_leaves", "_eo_keys", "_eo_nested")
_FAST, _MARKS, _LEAVES, _KEYS, _NESTED = WORKING

#: Column of the text of a record that Spark's reader refuses.
CORRUPT = "_eo_corrupt"
_OPTIONS = {**READING, "columnNameOfCorruptRecord": CORRUPT}

_NOT_KEPT = (
    "its unknown fields cannot be kept as they are: one has a field twice, or is larger than 16 MiB"
)

#: Types that the native function reads, besides texts.
_NATIVE_SCALARS = (
    *(BooleanType, ByteType, ShortType, IntegerType, LongType, FloatType, DoubleType),
    *(DecimalType, DateType, TimestampType),
)

#: Types that JSON writes as a text.
_TEXTS = frozenset({"string", "timestamp", "date"})


def read_as(schema: StructType) -> StructType:
    """Return the type that Spark's reader makes of records of ``schema``: leaves, see
    :func:`~eo_pipeline.batch.json_values.leaf_type`, and :data:`CORRUPT`.
    """
    leaves = leaf_type(schema)
    assert isinstance(leaves, StructType)
    return StructType([*leaves, StructField(CORRUPT, StringType())])


@dataclass(frozen=True)
class NativeResult:
    """Result of the native function for a record, a struct."""

    struct: Column

    @property
    def row(self) -> Column:
        """The record; null if it may break a rule."""
        return self.struct.getField("row")

    @property
    def unknown(self) -> Column:
        """Names of unknown fields, an array; null if there are none, or :attr:`row` is null."""
        return self.struct.getField("unknown")

    @property
    def leaves(self) -> Column:
        """If :attr:`row` is null: the struct that from_json makes of :attr:`marks`."""
        return self.struct.getField("leaves")

    @property
    def marks(self) -> Column:
        """If :attr:`row` is null: the :func:`~eo_pipeline.batch.json_values.marked` text."""
        return self.struct.getField("marked")


@dataclass(frozen=True)
class JsonDecoder(Decoder):
    """Decodes JSON by ``source.value_schema``; or by the reader of ``schemas``, whose fields match
    those of every writer by name.

    ``native``: by :func:`native_read`, as far as it goes. With ``plain`` each value is that of the
    one field.
    """

    source: KafkaSource
    schemas: WriterSchemas | None
    plain: bool = False
    native: bool = False

    @cached_property
    def schema(self) -> StructType:
        """Types of the columns."""
        source = self.source
        if self.schemas is not None:
            source = source.model_copy(update={"value_schema": self.schemas.reader_text})
        return value_schema(source)

    @property
    def names(self) -> list[str]:
        return self.schema.names

    @property
    def has_lost(self) -> bool:
        return bool(self._rescued)

    def decoded(self, raw: DataFrame) -> DataFrame:
        """Add also :data:`TEXT`, :data:`KEPT` if unknown fields are kept, and :data:`WORKING`."""
        schema, marks = self.schema, self._marks
        value, text = F.col("value"), F.col(TEXT)
        if self.schemas is not None:
            raw, value = wire_format.with_writer(raw, self.schemas), wire_format.body(self.schemas)
        # a column: Spark would copy the bytes for each use of an expression that casts them
        cast = value.cast("string")
        cast = F.concat(F.lit('{"key":'), cast, F.lit("}")) if self.plain else cast
        if (fast := self._fast_column) is not None:
            # one step, since each step of a plan copies its rows
            df = raw.withColumns({TEXT: cast, _FAST: fast})
            row = F.coalesce(self._fast.row, converted(self._leaves, schema))
            df = df.withColumn(PARSED, row)
        else:
            # a text that was cut is bad without being parsed, which would take an exception
            marks_if_whole = F.when(braced(text), marked(text))
            df = raw.withColumn(TEXT, cast).withColumn(_MARKS, marks_if_whole)
            df = df.withColumn(_LEAVES, self._read_leaves(marks))
            df = df.withColumn(PARSED, converted(self._leaves, schema))
        df = df.withColumn(_KEYS, self._judged(keys_if_needed(schema, text, marks, F.col(PARSED))))
        if (names := nested_names(schema, marks, F.col(_KEYS))) is not None:
            df = df.withColumn(_NESTED, self._judged(names))
        unknown = self._judged(unknown_fields(schema, F.col(_KEYS), self._nested))
        if self._is_fast:
            unknown = F.coalesce(unknown, self._fast.unknown)
        df = df.withColumn(UNKNOWN, unknown)
        if self.has_lost:
            df = df.withColumn(LOST, self._lost(marks))
        if self.source.keeps_unknown:
            kept = kept_fields(marks, schema, F.col(UNKNOWN), self._lost_names)
            # Spark fails on an object that has a key twice
            df = df.withColumn(KEPT, F.when(~self._is_twice, kept))
        return df

    def columns(self) -> list[Column]:
        columns = [F.col(PARSED).getField(name).alias(name) for name in self.names]
        if self.source.keeps_unknown:
            columns.append(F.col(KEPT).alias(UNKNOWN_COLUMN))
        return columns

    def error(self) -> Column:
        error = self._judged(self._error())
        if self.source.keeps_unknown:
            is_all_known = F.col(UNKNOWN).isNull() & (F.size(self._lost_names) == 0)
            error = F.coalesce(
                error, F.when(~(F.col(KEPT).isNotNull() | is_all_known), F.lit(_NOT_KEPT))
            )
        return error

    def _error(self) -> Column:
        """Return the first error of the record; null for a good one.

        Spark's parser takes the first element of a top-level array, ignores text after the first
        object, and calls the record good: hence the tests of its first and last character.
        """
        text, leaves, schema = F.col(TEXT), self._leaves, self.schema
        by_schema = [] if self.schemas is None else [*wire_format.errors(self.schemas)]
        by_schema += self._enum_errors()
        # without an id of a schema in front, the text is all of the value
        error = F.when((F.col("value") if by_schema else text).isNull(), F.lit(TOMBSTONE))
        for condition, reason in by_schema:
            error = error.when(condition, reason)
        error = (
            error.when(~braced(text), "the value is not a JSON object")
            .when(leaves.getField(CORRUPT).isNotNull(), shape_fault(text, schema))
            .when(leaves.isNull(), "the value is not a JSON object")
            .when(self._is_twice, "a field is written twice")
        )
        for fault in text_faults(text, self._marks):
            error = error.when(fault.holds, fault.reason)
        for field in schema:
            leaf, value = leaves.getField(field.name), F.col(PARSED).getField(field.name)
            if not field.nullable:
                missing = f"required field {field.name!r} is missing or null"
                error = error.when(leaf.isNull(), missing)
            for fault in faults(leaf, value, field.dataType, field.name):
                error = error.when(fault.holds, fault.reason)
        return error

    @cached_property
    def _fast_column(self) -> Column | None:
        """Call of the Java function on the bytes; None if Spark reads all records."""
        if not self.native:
            return None
        return native_read(F.col("value"), self.schema, read_as(self.schema))

    @property
    def _is_fast(self) -> bool:
        return self._fast_column is not None

    @cached_property
    def _fast(self) -> NativeResult:
        return NativeResult(F.col(_FAST))

    @cached_property
    def _marks(self) -> Column:
        return self._fast.marks if self._is_fast else F.col(_MARKS)

    @cached_property
    def _leaves(self) -> Column:
        return self._fast.leaves if self._is_fast else F.col(_LEAVES)

    @cached_property
    def _nested(self) -> Column | None:
        return F.col(_NESTED) if has_structs(self.schema) else None

    @cached_property
    def _is_twice(self) -> Column:
        return is_twice(F.col(_KEYS), self._nested)

    @cached_property
    def _lost_names(self) -> Column:
        return F.col(LOST) if self.has_lost else F.array().cast("array<string>")

    def _judged(self, column: Column) -> Column:
        """Return ``column`` for records that may be bad, null for those that were read fast."""
        return F.when(self._fast.row.isNull(), column) if self._is_fast else column

    @cached_property
    def _rescued(self) -> Mapping[frozenset[str], list[int]]:
        """Indexes of writers, by the columns that cannot hold all of their values."""
        schemas, indexes = self.schemas, dict[frozenset[str], list[int]]()
        if schemas is None or not schemas.policy.rescues_values:
            return indexes
        shape_of, reader = schemas.kind.shape_of, schemas.kind.shape_of(schemas.reader_text)
        for i, key in enumerate(schemas.writers):
            decisions = schemas.policy.decide(unreadable(shape_of(schemas.texts[key]), reader))
            if names := frozenset(decisions.rescued):
                indexes.setdefault(names, []).append(i)
        return indexes

    @cached_property
    def _shapes(self) -> dict[str, Shape]:
        """Shapes of the reader's columns."""
        assert self.schemas is not None
        return self.schemas.kind.shape_of(self.schemas.reader_text).fields

    def _is_writer(self, indexes: list[int]) -> Column:
        assert self.schemas is not None
        return F.coalesce(wire_format.writer_index(self.schemas).isin(indexes), F.lit(False))

    def _read_leaves(self, marks: Column) -> Column:
        """Parse the record as :func:`read_as`; rescued columns are null where the value of such a
        writer does not fit.
        """
        leaves = F.from_json(marks, read_as(self.schema), _OPTIONS)
        chain = (
            (self._is_writer(indexes), self._read_without(marks, names))
            for names, indexes in self._rescued.items()
        )
        return first_match([*chain, (F.lit(True), leaves)]) if self._rescued else leaves

    def _read_without(self, marks: Column, names: frozenset[str]) -> Column:
        """Parse the record without the values that the columns ``names`` cannot hold."""
        shapes = self._shapes
        others = [f for f in self.schema if f.name not in names or not shapes[f.name].parts]
        leaves = F.from_json(marks, read_as(StructType(others)), _OPTIONS)
        fields = []
        for field in self.schema:
            if field.name not in names:
                value = leaves.getField(field.name)
            elif shapes[field.name].parts:
                value = F.lit(None).cast(leaf_type(field.dataType))
            else:
                is_lost = _is_lost(marks, field, shapes[field.name])
                value = F.when(~is_lost, leaves.getField(field.name))
            fields.append(value.alias(field.name))
        corrupt = leaves.getField(CORRUPT).alias(CORRUPT)
        return F.when(leaves.isNotNull(), F.struct(*fields, corrupt))

    def _lost(self, marks: Column) -> Column:
        """Return the names of columns that are null because the value does not fit, an array."""
        chain = []
        for names, indexes in self._rescued.items():
            lost = [
                F.when(_is_lost(marks, self.schema[name], self._shapes[name]), F.lit(name))
                for name in sorted(names)
            ]
            chain.append((self._is_writer(indexes), F.array_compact(F.array(*lost))))
        return F.coalesce(first_match(chain), F.array().cast("array<string>"))

    def _enum_errors(self) -> Iterator[tuple[Column, Column]]:
        """Yield condition and text for enum values that only their writer has, if the policy
        quarantines them.
        """
        schemas = self.schemas
        if schemas is None or schemas.policy.new_enum_value is not Policy.QUARANTINE:
            return
        reader = schemas.kind.shape_of(schemas.reader_text)
        for i, key in enumerate(schemas.writers):
            changes = unreadable(schemas.kind.shape_of(schemas.texts[key]), reader)
            names = [c.column for c in changes if c.kind is ChangeKind.NEW_ENUM_VALUE]
            for name in dict.fromkeys(names):
                is_new = has_new_symbol(F.col(PARSED).getField(name), self._shapes[name])
                text = (
                    f"field {name!r} has a value that schema {schemas.reader} does not list, and "
                    f"source.schema_changes quarantines those of schema {key}"
                )
                is_writer = wire_format.writer_index(schemas) == i
                yield is_writer & F.coalesce(is_new, F.lit(False)), F.lit(text)


def native_read(value: Column, wanted: StructType, read: StructType) -> Column | None:
    """Read the bytes ``value`` by the schema ``wanted`` into the struct of a :class:`NativeResult`,
    by the function of ``OrdinaryJson.java``; None if it lacks one of the types. ``read``: leaves
    and column of corrupt records.
    """
    if not is_native(wanted):
        return None
    return F.call_function(_function(wanted, read), value)


def has_native_json(spark: SparkSession) -> bool:
    """Return whether ``spark`` has the function of :func:`native_read`; cached."""
    return has_function(spark, "json", _trial)


def native_parameters(wanted: StructType, read: StructType) -> str:
    """Return the parameters of the native reader, which are the function's name in its catalog."""
    return "\n".join([wanted.json(), read.json(), *(text for mark in MARKS for text in mark)])


def is_flat(wanted: StructType) -> bool:
    """Return whether no column is nested, of types that the native reader reads, or binary."""
    return all(
        _is_native_scalar(field.dataType) or isinstance(field.dataType, BinaryType)
        for field in wanted
    )


def _trial() -> Column:
    schema, read = StructType().add("id", LongType()), StructType().add("id", StringType())
    return F.call_function(_function(schema, read.add("corrupt", StringType())), F.lit(b""))


def _function(wanted: StructType, read: StructType) -> str:
    return f"{FUNCTION_CATALOG}.json.`{native_parameters(wanted, read).replace('`', '``')}`"


def is_native(wanted: DataType) -> bool:
    """Return whether the native reader reads values of this type."""
    if isinstance(wanted, StructType):
        return all(is_native(field.dataType) for field in wanted)
    if isinstance(wanted, ArrayType):
        return is_native(wanted.elementType)
    if isinstance(wanted, MapType):
        return wanted.keyType == StringType() and is_native(wanted.valueType)
    return _is_native_scalar(wanted)


def _is_native_scalar(wanted: DataType) -> bool:
    # other collations and lengths are subclasses of StringType
    return isinstance(wanted, _NATIVE_SCALARS) or wanted == StringType()


def _field(marks: Column, name: str, kind: DataType) -> Column:
    """Parse one field as ``kind``."""
    return F.from_json(marks, StructType([StructField(name, kind)]), READING).getField(name)


def _is_lost(marks: Column, field: StructField, shape: Shape) -> Column:
    """Return whether the column cannot hold the field's value. A text is never a number, whatever
    its characters, and a number never a text. Values with parts never fit.
    """
    leaf = _field(marks, field.name, StringType())
    if shape.parts:
        return leaf.isNotNull()
    fits = converted(leaf, field.dataType).isNotNull()
    if shape.type in _TEXTS:
        fits = fits & _is_text(marks, field.name, leaf)
    if shape.symbols:
        fits = fits & leaf.isin(*shape.symbols)
    return leaf.isNotNull() & ~fits


def _is_text(marks: Column, name: str, leaf: Column) -> Column:
    """Return whether the field is a text; as a leaf an object or an array looks like one."""
    kind = F.schema_of_variant(_field(marks, name, VariantType()))
    return ~is_marked(leaf) & F.coalesce(kind == "STRING", F.lit(False))
