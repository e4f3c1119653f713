"""Keys and values as Protobuf in Confluent's wire format, made by Spark's Python workers from Arrow
batches, in the one job.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any

from eo_pipeline.sinks.kafka import protobuf_worker
from eo_pipeline.sinks.kafka.protobuf_schema import as_message, unfit
from eo_pipeline.sinks.kafka.protobuf_worker import Written, batches_encoder
from eo_pipeline.sinks.unfit import Unfit, column
from eo_pipeline.source.protobuf_files import plain_files
from eo_pipeline.source.protobuf_schema import Protobuf, prefixes

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructType


@dataclass(frozen=True)
class AgreedProtobuf:
    """The schema ``text`` whose message of that ``kind`` values of ``data_type`` are written as,
    and the ``number`` that the registry has for it.
    """

    number: int
    text: str
    data_type: DataType
    kind: Protobuf

    def encoded(self, name: str | None) -> Column:
        """A struct of the column ``name``, or of the columns that are the fields of
        :attr:`data_type`, for :func:`by_workers`. Null for null, and where :meth:`unfit` finds
        something.
        """
        from pyspark.sql import functions as F

        value = self._value(name)
        faults = [F.coalesce(each.found, F.lit(False)) for _, each in self.unfit(name)]
        return F.when(~reduce(operator.or_, faults), value) if faults else value

    def unfit(self, name: str | None) -> Iterator[tuple[str, Unfit]]:
        """What the same may hold that the schema does not take, each with its column."""
        value = self._value(name)
        for inner, each in unfit(value, self._fields(name), self._message):
            yield name or inner, Unfit(value.isNotNull() & each.found, each.reason)

    def written(self, column: str) -> Written:
        """How the workers make bytes of the ``column`` of such structs."""
        which = prefixes(self.kind.indexes(self.text))[0]
        prefix = b"\x00" + self.number.to_bytes(4, "big") + which
        return Written(column, plain_files(self.text), self._message.full_name, prefix)

    def _value(self, name: str | None) -> Column:
        from pyspark.sql import functions as F
        from pyspark.sql.types import StructType

        if name is None:
            return F.struct(*(column(each) for each in self._fields(name).names))
        if isinstance(self.data_type, StructType):
            return column(name)
        return F.when(column(name).isNotNull(), F.struct(column(name).alias(name)))

    def _fields(self, name: str | None) -> StructType:
        return as_message(self.data_type, name)

    @property
    def _message(self) -> Any:
        return self.kind.descriptor(self.text)


def by_workers(frame: DataFrame, parts: Mapping[str, AgreedProtobuf]) -> DataFrame:
    """``frame`` whose columns ``parts``, structs, are bytes. Lazy."""
    from pyspark import cloudpickle
    from pyspark.sql.types import BinaryType, StructField, StructType

    if not parts:
        return frame
    cloudpickle.register_pickle_by_value(protobuf_worker)  # type: ignore[no-untyped-call]
    written = [agreed.written(name) for name, agreed in parts.items()]
    fields = [
        StructField(field.name, BinaryType()) if field.name in parts else field
        for field in frame.schema
    ]
    return frame.mapInArrow(batches_encoder(written), StructType(fields))
