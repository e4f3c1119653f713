"""Column types of a store of Parquet files, and refusal of values outside their range."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eo_pipeline._lazy import pa, pq, pt
from eo_pipeline.errors import RefusedError, SchemaChangeError
from eo_pipeline.sinks.arrow import has_common_years
from eo_pipeline.sinks.columns import is_scalar
from eo_pipeline.storage.paths import Place, parquet_source

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

#: Names of their tests in ``pyarrow.types``.
_PLAIN = (
    "is_boolean",
    "is_int8",
    "is_int16",
    "is_int32",
    "is_int64",
    "is_float32",
    "is_float64",
    "is_date32",
)


#: Prefix of the copies of partition values by which Spark lays out the staged files. The columns
#: themselves stay in the files, so that their type and value need not be guessed from folder names.
LAYOUT_PREFIX = "_eo_part_"

#: Bytes of a text that Spark may name a folder by: escaped they are three times as many.
_FOLDER_BYTES = 60


def layout_text(value: Column) -> Column:
    """Text for a value in the names of folders: null for null and for nothing else, different
    for different texts, ASCII (a Java without a UTF-8 locale has no other letters), without
    U+0000, which Spark does not escape and no path has, and short.
    """
    from pyspark.sql import functions as F

    size = F.octet_length(value)
    is_plain = (size <= _FOLDER_BYTES) & (size == F.length(value)) & ~value.contains("\0")
    return F.when(is_plain, F.concat(F.lit("t"), value)).otherwise(F.sha2(value, 256))


def own_columns(schema: pa.Schema) -> pa.Schema:
    """``schema`` without the copies by which Spark lays out files."""
    return pa.schema([field for field in schema if not field.name.startswith(LAYOUT_PREFIX)])


@dataclass(frozen=True)
class StoredTypes:
    """The types of one store, and what of a table's columns can be changed there.

    ``short_integers``: it tells 8 and 16 bits from 32. ``adds_fields``: to the structs of a table
    that is there. ``widens``: a column's type is changed and the files stay. ``takes_narrower``:
    rows may be of a narrower type than their column. ``remedy`` says what a person can do about a
    column that is too narrow.
    """

    store: str
    short_integers: bool = True
    adds_fields: bool = False
    widens: bool = False
    takes_narrower: bool = False
    remedy: str = "cast it in the transform, or give it another name"

    def refuse_unknown(self, df: DataFrame) -> None:
        """Before anything is read.

        Raises:
            SchemaChangeError: names every column of a type that the store has nothing for.
            RefusedError: see :meth:`check_names`.
        """
        self.check_names(df.columns)
        fields = [f for f in df.schema if not self._holds(f.dataType)]
        bad = [f"{f.name!r} ({f.dataType.simpleString()})" for f in fields]
        if bad:
            raise SchemaChangeError(
                f"{self.store} has no type for {', '.join(bad)}. Nothing was read; cast or drop "
                "these columns in the transform (a void column needs a type: "
                "lit(None).cast('string'))."
            )

    def check_names(self, names: Sequence[str]) -> None:
        """Of columns, and of the fields of a struct. Most stores take any that Arrow keeps.

        Raises:
            RefusedError: a name cannot be used.
        """
        bad = [name for name in names if "\0" in name]
        if bad:
            raise RefusedError(
                f"{self.store} cannot have columns named {', '.join(map(repr, bad))}: no name may "
                "hold the character 0. Rename them in the transform."
            )

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """``schema`` in the one form of each type, every column nullable: timestamps are in
        microseconds, UTC or without zone; text and bytes have no large or dictionary form.

        Raises:
            SchemaChangeError: a column has a type the store has nothing for.
            RefusedError: see :meth:`check_names`.
        """
        self.check_names(schema.names)
        fields = []
        for field in schema:
            stored = self._stored(field.type)
            if stored is None:
                raise SchemaChangeError(
                    f"column {field.name!r}: {self.store} has no type for {field.type}. "
                    "Nothing was written; cast or drop it in the transform."
                )
            fields.append(pa.field(field.name, stored))
        return pa.schema(fields)

    def comparable(self, schema: pa.Schema) -> pa.Schema:
        """Like :meth:`schema`, of a table that may have types of its own."""
        return pa.schema([(field.name, self._stored(field.type) or field.type) for field in schema])

    def table(self, table: pa.Table) -> pa.Table:
        """``table`` in :meth:`schema`.

        Raises:
            SchemaChangeError: see :meth:`schema`.
            RefusedError: a value does not fit (nanoseconds that are not whole microseconds).
        """
        schema = self.schema(table.schema)
        try:
            return table.cast(schema)
        except pa.ArrowInvalid as error:
            raise RefusedError(
                f"a column holds values that {self.store} cannot: {error}. Nothing was written; "
                "correct them in the transform."
            ) from error

    def shown(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """``batches`` of a table that may have columns of other kinds too, without those, each in
        its one form.
        """
        for batch in batches:
            stored = {field.name: self._stored(field.type) for field in batch.schema}
            table_schema = pa.schema([(name, kind) for name, kind in stored.items() if kind])
            arrays = [batch.column(f.name).cast(f.type, safe=False) for f in table_schema]
            yield pa.RecordBatch.from_arrays(arrays, schema=table_schema)

    def following(self, table_schema: pa.Schema, result: pa.Schema) -> pa.Schema:
        """The columns of a table that had those ``table_schema`` once it takes rows of
        ``result``; both in the one form of each type.

        Raises:
            SchemaChangeError: a column's type is another one and cannot follow, or its name differs
                only in case.
        """
        names = _by_folded_name(table_schema)
        fields = {field.name: field for field in table_schema}
        for field in result:
            mine = names.get(field.name.lower(), field.name)
            if mine != field.name:
                raise SchemaChangeError(
                    f"column {field.name!r}: the table has {mine!r}, and not every reader tells "
                    "them apart. Nothing was written; rename it in the transform."
                )
            held = fields.get(mine)
            kind = self._holding(held.type, field.type) if held else field.type
            if kind is None:
                assert held is not None
                raise SchemaChangeError(
                    f"column {mine!r}: the table has {held.type}, the result {field.type}. Nothing "
                    f"was written; {self.remedy}."
                )
            fields[mine] = pa.field(mine, kind)
        return pa.schema(list(fields.values()))

    def _holding(self, table_type: pa.DataType, result: pa.DataType) -> pa.DataType | None:
        """The type of a column that held ``table_type`` and is to hold ``result`` too."""
        if table_type == result:
            return table_type
        if pt.is_struct(table_type) and pt.is_struct(result):
            return self._holding_fields(table_type, result) if self.adds_fields else None
        if pt.is_list(table_type) and pt.is_list(result):
            item = self._holding(table_type.value_type, result.value_type)
            return item and pa.list_(pa.field("element", item))
        if pt.is_map(table_type) and pt.is_map(result) and table_type.key_type == result.key_type:
            item = self._holding(table_type.item_type, result.item_type)
            return item and pa.map_(table_type.key_type, item)
        if self.widens and is_wider(result, table_type):
            return result
        return table_type if self.takes_narrower and is_wider(table_type, result) else None

    def _holding_fields(self, table_type: pa.DataType, result: pa.DataType) -> pa.DataType | None:
        try:
            return pa.struct(
                list(self.following(pa.schema(list(table_type)), pa.schema(list(result))))
            )
        except SchemaChangeError:
            return None

    def _stored(self, kind: pa.DataType) -> pa.DataType | None:
        if (pt.is_int8(kind) or pt.is_int16(kind)) and not self.short_integers:
            return pa.int32()
        if any(getattr(pt, is_it)(kind) for is_it in _PLAIN) or (
            pt.is_decimal128(kind) and kind.scale >= 0
        ):
            return kind
        if pt.is_dictionary(kind):
            return self._stored(kind.value_type)
        if pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
            return pa.string()
        if pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind):
            return pa.binary()
        if pt.is_timestamp(kind):
            return pa.timestamp("us", "UTC" if kind.tz else None)
        return self._nested(kind)

    def _nested(self, kind: pa.DataType) -> pa.DataType | None:
        if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
            item = self._stored(kind.value_type)
            return item and pa.list_(pa.field("element", item))
        if pt.is_map(kind):
            key, value = self._stored(kind.key_type), self._stored(kind.item_type)
            return key and value and pa.map_(key, value)
        if pt.is_struct(kind):
            self.check_names([field.name for field in kind])
            inner = [(field.name, self._stored(field.type)) for field in kind]
            return pa.struct(inner) if all(stored for _, stored in inner) else None
        return None

    def _holds(self, kind: DataType) -> bool:
        """True if there is a type for this Spark type."""
        from pyspark.sql.types import ArrayType, MapType, StructType

        if isinstance(kind, ArrayType):
            return self._holds(kind.elementType)
        if isinstance(kind, MapType):
            return self._holds(kind.keyType) and self._holds(kind.valueType)
        if isinstance(kind, StructType):
            self.check_names(kind.names)
            return all(self._holds(field.dataType) for field in kind)
        return is_scalar(kind)


#: Of files as they are, whatever the table's format.
AS_STORED = StoredTypes("Parquet")


def _by_folded_name(schema: pa.Schema) -> dict[str, str]:
    return {name.lower(): name for name in schema.names}


@functools.cache
def _widths() -> tuple[tuple[pa.DataType, ...], ...]:
    """From the narrowest on, so that each holds every value of those before it."""
    return (pa.int8(), pa.int16(), pa.int32(), pa.int64()), (pa.float32(), pa.float64())


def is_wider(kind: pa.DataType, than: pa.DataType) -> bool:
    """True if every value of ``than`` is one of ``kind``, and files with either can be one column:
    more bits, or more digits before the point.
    """
    if pt.is_decimal128(kind) and pt.is_decimal128(than):
        return bool(kind.scale == than.scale and kind.precision > than.precision)
    return any(
        kind in widths and than in widths and widths.index(kind) > widths.index(than)
        for widths in _widths()
    )


def changed(before: pa.Schema, after: pa.Schema) -> pa.Schema:
    """The columns of ``after`` that ``before`` lacks or has of another type."""
    kinds = {field.name: field.type for field in before}
    return pa.schema([field for field in after if kinds.get(field.name) != field.type])


def refuse_unbounded_rows(table: pa.Table, store: str) -> None:
    """Refuse text that is not UTF-8, and times of other years than 1 to 9999, in any column.

    Raises:
        RefusedError: names the column.
    """
    for name in table.column_names:
        for chunk in table[name].chunks:
            try:
                chunk.validate(full=True)
            except pa.ArrowInvalid as error:
                raise _refused(name, store, str(error)) from error
            if not all(map(has_common_years, _leaves(chunk))):
                raise _refused(name, store, "years outside 1 to 9999")


def refuse_unbounded_file(path: Place, store: str) -> None:
    """Refuse a staged file as :func:`refuse_unbounded_footer` does."""
    refuse_unbounded_footer(pq.read_metadata(parquet_source(path)), store)


def refuse_unbounded_footer(metadata: pq.FileMetaData, store: str) -> None:
    """Refuse such values in a staged file by its footer alone; its rows are not read.

    Raises:
        RefusedError: names the column.
    """
    for group in range(metadata.num_row_groups):
        for index in range(metadata.num_columns):
            leaf = metadata.row_group(group).column(index)
            try:
                if leaf.is_stats_set and leaf.statistics.has_min_max:
                    _ = leaf.statistics.min, leaf.statistics.max
            except UnicodeDecodeError as error:
                raise _refused(leaf.path_in_schema, store, str(error)) from error
            except (OverflowError, ValueError) as error:
                named = "years outside 1 to 9999"
                raise _refused(leaf.path_in_schema, store, named) from error


def _refused(name: str, store: str, reason: str) -> RefusedError:
    return RefusedError(
        f"column {name!r} holds what {store} keeps no bounds of: {reason}. Nothing was written; "
        "correct it in the transform."
    )


def _leaves(values: pa.Array) -> Iterator[pa.Array]:
    """The plain arrays that nested ``values`` are made of."""
    kind = values.type
    if pt.is_struct(kind):
        for child in values.flatten():
            yield from _leaves(child)
    elif pt.is_map(kind):
        yield from _leaves(values.keys)
        yield from _leaves(values.items)
    elif pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        yield from _leaves(values.flatten())
    else:
        yield values
