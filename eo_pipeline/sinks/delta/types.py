"""Which types and names Delta holds, and the one form of each in which rows are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eo_pipeline.errors import RefusedError
from eo_pipeline.sinks.lake.types import StoredTypes

#: Characters that Delta without column mapping, and Parquet readers, do not take in a name.
NAME_CHARACTERS_REFUSED = frozenset(" ,;{}()\n\t=\0")


@dataclass(frozen=True)
class DeltaTypes(StoredTypes):
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
