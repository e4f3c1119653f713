"""Types and names that Delta supports, and the canonical form in which rows are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eo_pipeline.errors import RefusedError, SchemaChangeError
from eo_pipeline.sinks.lake.types import StoredTypes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType

#: Characters that Delta without column mapping, and Parquet readers, do not take in a name.
NAME_CHARACTERS_REFUSED = frozenset(" ,;{}()\n\t=\0")


@dataclass(frozen=True)
class DeltaTypes(StoredTypes):
    def refuse_unknown(self, df: DataFrame) -> None:
        super().refuse_unknown(df)
        kinds = {field.name: field.dataType for field in df.schema}
        if any(_has_times(kind, in_maps=False) for kind in kinds.values()):
            return
        if hidden := [name for name, kind in kinds.items() if _has_times(kind, in_maps=True)]:
            raise SchemaChangeError(
                f"the map {', '.join(map(repr, hidden))} holds TIMESTAMP_NTZ, for which delta-rs "
                "makes a table that nobody can open. Nothing was read; use TIMESTAMP or STRING "
                "there."
            )

    def check_names(self, names: Sequence[str]) -> None:
        bad = [name for name in names if not name or NAME_CHARACTERS_REFUSED & set(name)]
        if bad:
            raise RefusedError(
                f"Delta tables cannot have columns named {', '.join(map(repr, bad))}: no name may "
                "hold a space, a line break, a tab, the character 0 or one of ,;{}()=. Rename them "
                "in the transform."
            )


TYPES = DeltaTypes(
    "Delta",
    adds_fields=True,
    takes_narrower=True,
    remedy="a Delta table changes no type in its place without the feature typeWidening, which "
    "delta-rs does not write and most readers do not know. Cast it in the transform; or rewrite "
    "the table once, while no run is under way: t = DeltaTable(path).to_pyarrow_table(); "
    "i = t.schema.get_field_index(column); write_deltalake(path, t.set_column(i, column, "
    't[column].cast(type)), mode="overwrite", schema_mode="overwrite")',
)


def _has_times(kind: DataType, *, in_maps: bool) -> bool:
    """Look for a TIMESTAMP_NTZ in ``kind``; not within maps, where delta-rs does not look for the
    feature that the table needs, unless ``in_maps``.
    """
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampNTZType

    if isinstance(kind, StructType):
        return any(_has_times(field.dataType, in_maps=in_maps) for field in kind)
    if isinstance(kind, ArrayType):
        return _has_times(kind.elementType, in_maps=in_maps)
    if isinstance(kind, MapType):
        parts = (kind.keyType, kind.valueType)
        return in_maps and any(_has_times(part, in_maps=True) for part in parts)
    return isinstance(kind, TimestampNTZType)
