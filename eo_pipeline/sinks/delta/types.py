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


TYPES = DeltaTypes("Delta")
