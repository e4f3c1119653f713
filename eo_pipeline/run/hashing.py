"""The checksum of what is staged, made on its way through the one Spark job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType, StructType

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Checksum
from eo_pipeline.run.counting import Mark, Result
from eo_pipeline.sinks.config import Sink
from eo_pipeline.source.decoded import KAFKA_COLUMN, LINEAGE
from eo_pipeline.spark import checksums

_HASH = "_eo_hash"


@dataclass(frozen=True)
class HashedRows:
    """Rows of which a checksum is made: ``columns`` by :func:`checksums.hashed_columns`, and the
    ``mark`` by which a :class:`Result` makes it.
    """

    columns: Mapping[str, Any]
    mark: Mark

    @classmethod
    def of_result(cls, result: DataFrame, sink: Sink, *, lineage: bool) -> Self | None:
        """``result`` as the table will show it: with where its rows came from; None if ``sink``
        does not show it, or rows replace each other there.
        """
        if not sink.keeps_every_row:
            return None
        found = _columns(result, but=KAFKA_COLUMN)
        if lineage:
            kafka = result.schema[KAFKA_COLUMN].dataType
            assert isinstance(kafka, StructType), "as the source made it"
            traced = F.col(KAFKA_COLUMN)
            found |= {n: (traced.getField(f), kafka[f].dataType) for n, f in LINEAGE.items()}
        return cls._of(found, sink)

    @classmethod
    def of_dead_letters(cls, letters: DataFrame, sink: Sink) -> Self | None:
        """See :meth:`of_result`; dead letters never replace each other."""
        return cls._of(_columns(letters, but=CHECKPOINT_COLUMN), sink)

    @classmethod
    def _of(cls, found: Mapping[str, tuple[Column, DataType]], sink: Sink) -> Self | None:
        shape = StructType()
        for name, (_, data_type) in found.items():
            shape.add(name, data_type)
        columns = checksums.hashed_columns(shape, sink.gives_back)
        if not columns:
            return None
        value = checksums.row_hash(columns, found)
        return cls(columns, Mark(_HASH, value, checksums.sums(F.col(_HASH))))

    def checksum(self, result: Result) -> Checksum:
        """Of ``result``, after it was counted."""
        return checksums.checksum(self.columns, checksums.summed(result.seen))


def _columns(frame: DataFrame, but: str) -> dict[str, tuple[Column, DataType]]:
    fields = [field for field in frame.schema if field.name != but]
    return {field.name: (checksums.column(field.name), field.dataType) for field in fields}
