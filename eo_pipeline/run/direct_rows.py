"""As what :mod:`eo_pipeline.run.direct` stages a row: its columns, or one value made of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from eo_pipeline.sinks.documents import Documents
from eo_pipeline.sinks.packing import Packing
from eo_pipeline.sinks.projection import JSON_OPTIONS
from eo_pipeline.staging.rows import PACKED_COLUMN

#: In the place of a column: what is made of the whole row, and the bytes of one column's text. As
#: ``Staging.java`` has them.
_WHOLE, _TEXT = -1, -2


@dataclass(frozen=True)
class Written:
    """``columns`` of a staged file; ``places`` say which of the row's columns each is. ``form`` is
    that of packed rows, see :class:`Packing`. ``made``: options of its own.
    """

    columns: StructType
    places: tuple[int, ...]
    form: str | None = None
    made: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, str]:
        """As ``StagedRanges.java`` is told."""
        return {
            "eo.written": self.columns.json(),
            "eo.places": ",".join(map(str, self.places)),
            "eo.document": "",
            **self.made,
        }


def places(columns: StructType, names: Collection[str]) -> str:
    """Where the columns with these ``names`` are."""
    return ",".join(str(columns.names.index(name)) for name in names)


def as_columns(columns: StructType) -> Written:
    """A row is staged as it is."""
    return Written(columns, tuple(range(len(columns))))


def as_packed(columns: StructType, packing: Packing) -> Written:
    """One value that only the sink reads, and the columns beside it."""
    beside = [columns.names.index(name) for name in packing.beside]
    packed = StructField(PACKED_COLUMN, BinaryType(), nullable=False)
    written = StructType([packed, *(columns[place] for place in beside)])
    return Written(written, (_WHOLE, *beside), packing.form, {"eo.packs": "true"})


def as_documents(columns: StructType, documents: Documents) -> Written:
    """One JSON object, and the columns beside it."""
    made = {"eo.document": places(columns, documents.fields)}
    made |= {f"eo.json.{name}": value for name, value in JSON_OPTIONS.items()}
    written, of = [StructField(documents.column, StringType())], [_WHOLE]
    for name, column in documents.beside.items():
        place = columns.names.index(column)
        if name == documents.as_bytes:
            made["eo.text"] = str(place)
            written.append(StructField(name, BinaryType()))
            of.append(_TEXT)
        else:
            written.append(StructField(name, columns[place].dataType, columns[place].nullable))
            of.append(place)
    return Written(StructType(written), tuple(of), made=made)
