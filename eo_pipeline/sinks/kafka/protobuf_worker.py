"""Arrow to Protobuf, in Spark's Python workers, which need ``ptars`` and ``protobuf`` but nothing
of this package: the module is sent along.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: Bytes of an Arrow decimal.
_DECIMAL_BYTES = 16


@dataclass(frozen=True)
class Written:
    """A ``column`` of structs that becomes one of bytes: ``prefix``, and the ``message`` of
    ``files``, serialized FileDescriptorProtos.
    """

    column: str
    files: tuple[bytes, ...]
    message: str
    prefix: bytes


def batches_encoder(
    parts: Sequence[Written],
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """For ``mapInArrow``: all columns as they are, but for those ``parts``."""

    def encode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writers = {part.column: _Writer(part) for part in parts}
        for batch in batches:
            arrays = [
                writers[name].bytes_of(array) if name in writers else array
                for name, array in zip(batch.schema.names, batch.columns, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, batch.schema.names)

    return encode


class _Writer:
    """Writes messages of one type."""

    def __init__(self, part: Written) -> None:
        import ptars
        from google.protobuf.descriptor_pool import DescriptorPool

        pool = DescriptorPool()
        for file in part.files:
            pool.AddSerializedFile(file)
        descriptor = pool.FindMessageTypeByName(part.message)
        config = ptars.PtarsConfig(enum_repr="string", timestamp_unit="us")
        handlers = ptars.HandlerPool([descriptor.file], config=config)
        self._handler = handlers.get_for_message(descriptor)
        self._kinds = {field.name: field.type for field in self._handler.schema()}
        self._prefix = pa.scalar(part.prefix, pa.binary())

    def bytes_of(self, structs: pa.Array) -> pa.Array:
        """Null for null."""
        fields = [(f.name, a) for f, a in zip(structs.type, structs.flatten(), strict=True)]
        arrays = [fitted(array, self._kinds[name]) for name, array in fields]
        batch = pa.RecordBatch.from_arrays(arrays, [name for name, _ in fields])
        written = self._handler.record_batch_to_array(batch)
        nothing = pa.scalar(b"", pa.binary())
        whole = pc.binary_join_element_wise(self._prefix, written.cast(pa.binary()), nothing)
        return pc.if_else(structs.is_valid(), whole, pa.scalar(None, pa.binary()))


def fitted(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert values to the form that a message of type ``kind`` takes."""
    if pa.types.is_struct(kind):
        if pa.types.is_date(array.type):
            parts = [component(array) for component in (pc.year, pc.month, pc.day)]
            return _struct(("year", "month", "day"), parts, kind, array)
        if pa.types.is_decimal(array.type):
            digits = array.type.precision, array.type.scale
            parts = [_unscaled(array), *(pa.array([n] * len(array)) for n in digits)]
            return _struct(("value", "precision", "scale"), parts, kind, array)
        names = [field.name for field in array.type]
        return _struct(names, array.flatten(), kind, array)
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(array.offsets, fitted(array.values, kind.value_type))
    if pa.types.is_map(kind):
        keys = fitted(array.keys, kind.key_type)
        return pa.MapArray.from_arrays(array.offsets, keys, fitted(array.items, kind.item_type))
    return array.cast(kind)


def _struct(
    names: Sequence[str], parts: Sequence[pa.Array], kind: pa.StructType, like: pa.Array
) -> pa.Array:
    arrays = [fitted(part, kind.field(name).type) for name, part in zip(names, parts, strict=True)]
    fields = [pa.field(name, part.type) for name, part in zip(names, arrays, strict=True)]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=like.is_null())


def _unscaled(array: pa.Array) -> pa.Array:
    """Two's complement, the highest byte first; Arrow has the lowest first."""
    import numpy as np

    if not len(array):  # it may have no buffer
        return pa.array([], pa.binary())
    start = array.offset * _DECIMAL_BYTES
    stop = start + len(array) * _DECIMAL_BYTES
    lowest_first: Any = np.frombuffer(array.buffers()[1], np.uint8)[start:stop]
    turned = lowest_first.reshape(-1, _DECIMAL_BYTES)[:, ::-1].tobytes()
    fixed = pa.Array.from_buffers(
        pa.binary(_DECIMAL_BYTES), len(array), [None, pa.py_buffer(turned)]
    )
    return fixed.cast(pa.binary())
