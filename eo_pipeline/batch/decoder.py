"""Interface of the decoders: one for each format. Lazy Spark expressions only."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from eo_pipeline.formats import wire_format
from eo_pipeline.formats.parts import VALUE
from eo_pipeline.formats.wire_format import UNKNOWN_COLUMN, WriterSchemas

#: Columns that a decoder adds, see :meth:`Decoder.decoded`.
PARSED = "_eo_parsed"
UNKNOWN = "_eo_unknown"
LOST = "_eo_lost"

TOMBSTONE = "the value is null (a tombstone)"


class Decoder(ABC):
    """Decodes the values, or keys, of one format."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """Names of the fields, in order."""

    @property
    @abstractmethod
    def has_lost(self) -> bool:
        """True if :meth:`decoded` adds :data:`LOST`."""

    @abstractmethod
    def decoded(self, raw: DataFrame) -> DataFrame:
        """Add :data:`PARSED`, a struct of the fields, null if a record cannot be decoded;
        :data:`UNKNOWN`, an array of the paths of the fields that a record has, or may have by its
        writer's schema, and the struct lacks, null if there are none; and :data:`LOST`, an array of
        the columns that cannot hold the value of their field.
        """

    @abstractmethod
    def columns(self) -> list[Column]:
        """Return the fields of :data:`PARSED`, and the unknown fields if they are kept."""

    @abstractmethod
    def error(self) -> Column:
        """Return the first error of a record after :meth:`decoded`; null for a good one."""


@dataclass(frozen=True)
class SchemaDecoder(Decoder):
    """Decodes a format whose bytes are meaningless without a schema: Avro, Protobuf."""

    schemas: WriterSchemas

    @property
    def names(self) -> list[str]:
        return self.schemas.kind.field_names(self.schemas.reader_text)

    @property
    def has_lost(self) -> bool:
        return self.schemas.rescues

    def decoded(self, raw: DataFrame) -> DataFrame:
        df = self._decoded(wire_format.with_writer(raw, self.schemas))
        return df.withColumn(LOST, self._lost()) if self.has_lost else df

    def columns(self) -> list[Column]:
        kept = [UNKNOWN_COLUMN] if self.schemas.keeps else []
        return [F.col(PARSED).getField(name).alias(name) for name in [*self.names, *kept]]

    def error(self) -> Column:
        part = self.schemas.part
        tombstone = F.lit(TOMBSTONE if part == VALUE else None).cast("string")
        error = F.when(F.col(part.name).isNull(), tombstone)
        for condition, reason in (*wire_format.errors(self.schemas), *self._errors()):
            error = error.when(condition, reason)
        return error

    @abstractmethod
    def _decoded(self, records: DataFrame) -> DataFrame:
        """Add :data:`PARSED` and :data:`UNKNOWN` to the result of
        :func:`eo_pipeline.formats.wire_format.with_writer`.
        """

    @abstractmethod
    def _errors(self) -> Iterator[tuple[Column, Column]]:
        """Yield condition and text of each error of records with a known schema, in order."""

    @staticmethod
    def _lost() -> Column:
        """Return the kept fields that have no unknown field within: their columns are too narrow.
        An array, never null.
        """
        none = F.array().cast("array<string>")
        tops = F.transform(F.col(UNKNOWN), lambda path: F.substring_index(path, ".", 1))
        keys = F.json_object_keys(F.col(PARSED).getField(UNKNOWN_COLUMN))
        return F.coalesce(F.array_except(keys, F.coalesce(tops, none)), none)
