"""Field ids, by which readers find a table's columns in its files after a rename.

A file keeps the names of its day, and the id of each column in Parquet's own schema. Files of
releases before ids were written, and those that Spark wrote and gave none, have names alone: such
a file's columns are what the table's name mapping says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.name_mapping import MappedField

from eo_pipeline._lazy import pa, pt
from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.sinks.iceberg.types import TYPES
from eo_pipeline.sinks.lake.types import changed
from eo_pipeline.staging.rows import IDS

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

#: A column, or one within it; the elements of arrays and maps have Iceberg's names.
Path = tuple[str, ...]
Ids = Mapping[Path, int]

#: Where Arrow, and where Spark, keeps an id in a field's own annotations.
_ARROWS = b"PARQUET:field_id"
_SPARKS = "parquet.field.id"

_ELEMENT, _KEY, _VALUE = "element", "key", "value"


def columns_of(table: Table) -> pa.Schema:
    """The table's columns in the form in which results are compared."""
    return TYPES.comparable(table.schema().as_arrow())


def ids_of(schema: Schema) -> dict[Path, int]:
    """Of all columns, those within others too."""
    return {
        path: int(field_id) for path, field_id in ids_in(schema.as_arrow()) if field_id is not None
    }


def ids_in(fields: Iterable[pa.Field], at: Path = ()) -> Iterator[tuple[Path, int | None]]:
    """Field ids of a file, whose columns may have none."""
    for field in fields:
        yield from _ids_in(field, (*at, field.name))


def _ids_in(field: pa.Field, path: Path) -> Iterator[tuple[Path, int | None]]:
    field_id = (field.metadata or {}).get(_ARROWS)
    yield path, int(field_id) if field_id is not None else None
    kind = field.type
    if pt.is_struct(kind):
        yield from ids_in(kind, path)
    elif pt.is_map(kind):
        yield from _ids_in(kind.key_field, (*path, _KEY))
        yield from _ids_in(kind.item_field, (*path, _VALUE))
    elif pt.is_list(kind) or pt.is_large_list(kind):
        yield from _ids_in(kind.value_field, (*path, _ELEMENT))


def with_ids(schema: pa.Schema, ids: Ids) -> pa.Schema:
    """``schema``, in the one form of each type, with what makes Arrow write ``ids`` into a file."""
    return pa.schema([_with_id(field, (field.name,), ids) for field in schema])


def _with_id(field: pa.Field, path: Path, ids: Ids) -> pa.Field:
    metadata = {_ARROWS: str(ids[path]).encode()}
    return pa.field(field.name, _kind_with_ids(field.type, path, ids), field.nullable, metadata)


def _kind_with_ids(kind: pa.DataType, path: Path, ids: Ids) -> pa.DataType:
    if pt.is_struct(kind):
        return pa.struct([_with_id(field, (*path, field.name), ids) for field in kind])
    if pt.is_map(kind):
        key = _with_id(kind.key_field, (*path, _KEY), ids)
        return pa.map_(key, _with_id(kind.item_field, (*path, _VALUE), ids))
    if pt.is_list(kind):
        return pa.list_(_with_id(kind.value_field, (*path, _ELEMENT), ids))
    return kind


def as_spark_writes(columns: StructType, ids: Ids) -> StructType:
    """``columns`` with what makes Spark write ``ids`` into a file. It has no place for those of an
    array's elements and a map's keys, and readers take a file's ids all together or not at all: if
    there are such columns, all have them as :data:`~eo_pipeline.staging.rows.IDS`.
    """
    from pyspark.sql.types import StructField, StructType

    if not any(_is_of_many(field.dataType) for field in columns):
        return StructType([_as_spark_writes(field, (field.name,), ids) for field in columns])
    typed = [
        {**field.metadata, IDS: [*_all_ids(field.dataType, (field.name,), ids)]}
        for field in columns
    ]
    both = zip(columns, typed, strict=True)
    return StructType([StructField(f.name, f.dataType, f.nullable, more) for f, more in both])


def _as_spark_writes(field: StructField, path: Path, ids: Ids) -> StructField:
    from pyspark.sql.types import StructField, StructType

    kind = field.dataType
    if isinstance(kind, StructType):
        kind = StructType([_as_spark_writes(nested, (*path, nested.name), ids) for nested in kind])
    return StructField(field.name, kind, field.nullable, {**field.metadata, _SPARKS: ids[path]})


def _all_ids(kind: DataType, path: Path, ids: Ids) -> Iterator[int]:
    yield ids[path]
    for name, within in _within(kind):
        yield from _all_ids(within, (*path, name), ids)


def _within(kind: DataType) -> list[tuple[str, DataType]]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return [(_ELEMENT, kind.elementType)]
    if isinstance(kind, MapType):
        return [(_KEY, kind.keyType), (_VALUE, kind.valueType)]
    return [(field.name, field.dataType) for field in kind] if isinstance(kind, StructType) else []


def _is_of_many(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, MapType

    is_one = isinstance(kind, ArrayType | MapType)
    return is_one or any(_is_of_many(within) for _, within in _within(kind))


def following(table: Table | None, result: pa.Schema) -> Schema:
    """The table's columns once it takes rows of ``result``, each with the id that it will have.

    Raises:
        SchemaChangeError: it does not take them.
    """
    if table is None:
        return assign_fresh_schema_ids(Catalog._convert_schema_if_needed(result))
    transaction = table.transaction()
    widen(transaction, table, result)
    return transaction.table_metadata.schema()


def widen(transaction: Transaction, table: Table, result: pa.Schema) -> None:
    """New nullable columns, and wider types, on a ``transaction`` of the ``table``.

    Raises:
        SchemaChangeError: the table does not take rows of ``result``.
    """
    columns = columns_of(table)
    if new := list(changed(columns, TYPES.following(columns, result))):
        refuse_other_names(".".join(table.name()), table.metadata, result)
        with transaction.update_schema() as update:
            update.union_by_name(pa.schema(new))
    refuse_nulls(".".join(table.name()), table.schema(), result)


def refuse_other_names(table: str, metadata: TableMetadata, result: pa.Schema) -> None:
    """Return if no column of ``result`` was renamed or dropped in the table: a new one of that name
    would undo it, and divide the values between two columns.

    Raises:
        SchemaChangeError: names the column, and what it is called now.
    """
    schema = metadata.schema()
    ids = ids_of(schema)
    for path, _ in ids_in(result):
        if path in ids or (earlier := _earlier_id(metadata, path)) is None:
            continue
        name, now = ".".join(path), schema.find_column_name(earlier)
        if now is None:
            raise SchemaChangeError(
                f"column {name!r}: somebody dropped it from {table}. Nothing was written. Leave it "
                "out of value_schema or the transform; or add it to the table again (ALTER TABLE "
                "... ADD COLUMN), without values in the rows that are there."
            )
        raise SchemaChangeError(
            f"column {name!r}: somebody renamed it in {table}, where it is {now!r} now. Nothing "
            f"was written. Call it {now!r} in the transform or value_schema, or rename it back in "
            "the table."
        )


def _earlier_id(metadata: TableMetadata, path: Path) -> int | None:
    """The id of a column that was called so in the table before, or in files without ids."""
    for schema in sorted(metadata.schemas, key=lambda schema: schema.schema_id, reverse=True):
        if (field_id := ids_of(schema).get(path)) is not None:
            return field_id
    mapping = metadata.name_mapping()
    return _mapped(mapping.root, path) if mapping else None


def _mapped(fields: Iterable[MappedField], path: Path) -> int | None:
    match = next((field for field in fields if path[0] in field.names), None)
    if match is None or len(path) == 1:
        return match.field_id if match else None
    return _mapped(match.fields, path[1:])


def refuse_nulls(table: str, schema: Schema, result: pa.Schema) -> None:
    """Return if the table takes null in whatever ``result`` does not have, or has within a column:
    of whole columns it is looked for in every row (``SinkSession.never_null``).

    Raises:
        SchemaChangeError: names the column.
    """
    if not result.names:
        return
    needed = [f.name for f in schema.fields if f.required and f.initial_default is None]
    if lacking := [name for name in needed if name not in result.names]:
        raise SchemaChangeError(
            f"{table} takes no null in {', '.join(map(repr, lacking))}, which the rows do not "
            "have. Nothing was written. Add it in the transform; or let the table take null "
            "(ALTER TABLE ... ALTER COLUMN ... DROP NOT NULL)."
        )
    within = [".".join(path) for path in _never_null_within(schema.as_arrow())]
    if dropped := [name for name in within if name.partition(".")[0] in result.names]:
        raise SchemaChangeError(
            f"{table} takes no null in {', '.join(map(repr, dropped))}, and values within a column "
            "are not looked at one by one. Nothing was written. Let the table take null there."
        )


def _never_null_within(fields: Iterable[pa.Field], at: Path = ()) -> Iterator[Path]:
    for field in fields:
        path, kind = (*at, field.name), field.type
        if at and not field.nullable:
            yield path
        if pt.is_struct(kind):
            yield from _never_null_within(kind, path)
        elif pt.is_map(kind):  # its keys never are
            yield from _never_null_within([kind.item_field.with_name(_VALUE)], path)
        elif pt.is_list(kind) or pt.is_large_list(kind):
            yield from _never_null_within([kind.value_field.with_name(_ELEMENT)], path)


def name_mapping(metadata: TableMetadata) -> str | None:
    """As the table has it, by which files without ids are read."""
    return metadata.properties.get(TableProperties.DEFAULT_NAME_MAPPING)
