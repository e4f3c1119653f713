"""What decodes the records of each kind of schema: one module a kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from pyspark.sql import Column, DataFrame

from eo_pipeline.ledger.schemas import AVRO, PROTOBUF
from eo_pipeline.source import avro, protobuf
from eo_pipeline.source.wire import WireSchemas


class Decoder(Protocol):
    """What is asked of one. Lazy; no job of its own."""

    def parsed(self, keyed: DataFrame, schemas: WireSchemas, name: str, unknown: str) -> DataFrame:
        """``keyed``, see :func:`eo_pipeline.source.wire.keyed`, with a struct ``name`` of the
        reader's fields, and ``unknown``, an array of the paths of fields that a record has, or may
        have by its writer's schema, and the reader has not; null if there are none.
        """

    def columns(self, schemas: WireSchemas, struct: Column) -> list[Column]:
        """The reader's fields of what :meth:`parsed` made."""

    def errors(
        self, schemas: WireSchemas, struct: Column, unknown: Column, /
    ) -> Iterator[tuple[Column, Column]]:
        """What may be wrong with one that names a known schema, in the order to be asked, and how
        it is said; ``struct`` and ``unknown`` are what :meth:`parsed` made.
        """


_DECODERS: Mapping[str, Decoder] = {AVRO: avro, PROTOBUF: protobuf}


def decoder_of(schema_type: str) -> Decoder:
    """Of what a registry calls so."""
    return _DECODERS[schema_type]
