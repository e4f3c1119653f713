"""Protobuf to Arrow, in Spark's Python workers, which need ``ptars`` and ``protobuf`` but nothing
of this package: the module is sent along.

Google's own decoder says whether bytes are a message, and writes them anew; what it makes of a
field that is there twice, or of two members of a oneof, other decoders do not all agree on. Of
that ptars makes columns, a batch at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: Microseconds since 1970 of the first moment of year 1, and of the last of year 9999.
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999

#: Microseconds of Protobuf's longest duration, 10,000 years.
_LONGEST = 315_576_000_000_000_000

#: Names of unknown fields by the numbers that lead to them.
Names = Mapping[tuple[int, ...], str]


def arrow_type(files: Sequence[bytes], message: str) -> pa.StructType:
    """What a ``message`` of ``files``, serialized FileDescriptorProtos, becomes."""
    import ptars

    found = ptars.get_schema(_pool(files).FindMessageTypeByName(message), _config())
    return pa.struct([pa.field(f.name, _fitted(f.type)) for f in found])


def batches_decoder(
    files: Sequence[bytes],
    message: str,
    names: Sequence[Names],
    columns: tuple[str, str, str, str],
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """For ``mapInArrow``.

    Args:
        files: as :func:`arrow_type` takes them.
        message: the full name.
        names: for each writer's schema, how its fields are called that ``message`` has not.
        columns: the names of the column of serialized messages, which is left out, of the one that
            holds the place of the writer's schema, and of two that are added: the message, null if
            it cannot be read, and the names of its unknown fields, null if there are none.
    """
    body, writer, struct, unknown = columns

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = _Reader(files, message)
        for batch in batches:
            by = batch.column(writer).to_pylist()
            rest = [name for name in batch.schema.names if name != body]
            values, more = reader.read(batch.column(body), [names[i or 0] for i in by])
            arrays = [*(batch.column(name) for name in rest), values, more]
            yield pa.RecordBatch.from_arrays(arrays, [*rest, struct, unknown])

    return decode


class _Reader:
    """Reads messages of one type."""

    def __init__(self, files: Sequence[bytes], name: str) -> None:
        import ptars
        from google.protobuf import message, message_factory

        descriptor = _pool(files).FindMessageTypeByName(name)
        self._message = message_factory.GetMessageClass(descriptor)
        self._refused = message.DecodeError
        pool = ptars.HandlerPool([descriptor.file], config=_config())
        self._handler = pool.get_for_message(descriptor)

    def read(self, bodies: pa.Array, names: Sequence[Names]) -> tuple[pa.Array, pa.Array]:
        """The messages, and the names of their unknown fields."""
        written, unknown = self._anew(bodies.to_pylist(), names)
        batch = self._handler.array_to_record_batch(pa.array(written, pa.binary()))
        bad = [each is None for each in written]
        if any(_is_beyond(column) for column in batch.columns):
            bad = [
                no or any(_is_beyond(column) for column in batch.slice(i, 1).columns)
                for i, no in enumerate(bad)
            ]
        fields = [pa.field(f.name, _fitted(f.type)) for f in batch.schema]
        arrays = [a.cast(f.type) for a, f in zip(batch.columns, fields, strict=True)]
        values = pa.StructArray.from_arrays(arrays, fields=fields, mask=pa.array(bad, pa.bool_()))
        return values, pa.array(unknown, pa.list_(pa.string()))

    def _anew(
        self, bodies: Sequence[bytes | None], names: Sequence[Names]
    ) -> tuple[list[bytes | None], list[list[str] | None]]:
        """Messages as Google's decoder understands them, None for what it does not; and what of
        each is unknown. In one loop without calls of ours: it is most of the decoding.
        """
        parse, refused = self._message.FromString, self._refused
        written: list[bytes | None] = [None] * len(bodies)
        unknown: list[list[str] | None] = [None] * len(bodies)
        for i, body in enumerate(bodies):
            if body is None:
                continue
            try:
                found = parse(body)
            except refused:
                continue
            if not found.IsInitialized():
                continue
            whole = written[i] = found.SerializePartialToString()
            found.DiscardUnknownFields()
            if found.ByteSize() != len(whole):
                paths = _unknown(parse(body), (), "")
                unknown[i] = sorted({names[i].get(numbers, name) for numbers, name in paths})
        return written, unknown


def _pool(files: Sequence[bytes]) -> Any:
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for each in files:
        pool.AddSerializedFile(each)
    return pool


def _config() -> Any:
    import ptars

    return ptars.PtarsConfig(enum_repr="string", timestamp_unit="us", duration_unit="us")


def _unknown(
    message: Any, numbers: tuple[int, ...], path: str
) -> Iterator[tuple[tuple[int, ...], str]]:
    """The numbers that lead to each field that a message has and its schema has not, and a name."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    for each in UnknownFieldSet(message):
        yield (*numbers, each.field_number), f"{path}#{each.field_number}"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in _messages(field, value):
            yield from _unknown(inner, (*numbers, field.number), f"{path}{field.name}.")


def _messages(field: Any, value: Any) -> Iterable[Any]:
    if not field.is_repeated:
        return [value]
    if not field.message_type.GetOptions().map_entry:
        return value  # type: ignore[no-any-return]
    held = field.message_type.fields_by_name["value"]
    return value.values() if held.message_type is not None else ()


def _fitted(kind: pa.DataType) -> pa.DataType:
    """The narrowest type of Spark's that holds all of ``kind``."""
    if pa.types.is_uint32(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return pa.int64()
    if pa.types.is_uint64(kind):
        return pa.decimal128(20, 0)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _fitted(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(_fitted(kind.key_type), _fitted(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_fitted(kind.value_type))
    return kind


def _is_beyond(array: pa.Array) -> bool:
    """Whether a time in it is none that Protobuf allows."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        first, last = (_FIRST, _LAST) if pa.types.is_timestamp(kind) else (-_LONGEST, _LONGEST)
        numbers = pc.min_max(array.cast(pa.int64()))
        low, high = numbers["min"].as_py(), numbers["max"].as_py()
        return low is not None and (low < first or high > last)
    if pa.types.is_struct(kind):
        return any(_is_beyond(each) for each in array.flatten())
    if pa.types.is_map(kind):
        return _is_beyond(array.items)
    return pa.types.is_list(kind) and _is_beyond(array.flatten())
