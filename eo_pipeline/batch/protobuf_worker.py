"""Protobuf to Arrow, in Spark's Python workers, which need ``ptars`` and ``protobuf`` but nothing
of this package: the module is sent along.

Google's own decoder says whether bytes are a message, and writes them anew; what it makes of a
field that is there twice, or of two members of a oneof, other decoders do not all agree on. Of
that ptars makes columns. Both take a batch at once: its messages are one field of one message that
is made for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: Microseconds since 1970 of the first moment of year 1, and of the last of year 9999.
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999

#: Microseconds of Protobuf's longest duration, 10,000 years and nearly a second.
_LONGEST = 315_576_000_000_999_999

#: Bytes that are decoded at once: a message of Protobuf's has two gigabytes at most.
_AT_ONCE = 32 << 20

#: What stands in front of each element of field number 1 of a message, and then how long it is.
_ELEMENT = b"\x0a"

#: Names of unknown fields by the numbers that lead to them; None for those that nobody counts.
Names = Mapping[tuple[int, ...], str | None]


@dataclass(frozen=True)
class Message:
    """One of ``files``, serialized FileDescriptorProtos, by its full ``name``."""

    files: tuple[bytes, ...]
    name: str


@dataclass(frozen=True)
class Reading:
    """How records of one writer are read: as ``message``, whose fields are some of the columns or
    all, with ``names`` for what it has not. What it ``also`` is becomes the column of that name.
    """

    message: Message
    names: Names
    also: tuple[str, Message] | None = None


@dataclass(frozen=True)
class Columns:
    """The names of the column of serialized messages, which is left out, of the one that holds the
    place of the writer's schema, and of two that are added: the message, null if it cannot be read,
    and the names of its unknown fields, null if there are none. Of a message that is null because
    of a time in it the one name is that of its field.
    """

    body: str
    writer: str
    struct: str
    unknown: str


def arrow_type(message: Message) -> pa.StructType:
    """What a ``message`` becomes."""
    import ptars

    found = ptars.get_schema(_pool(message.files).FindMessageTypeByName(message.name), _config())
    return pa.struct([pa.field(f.name, _fitted(f.type)) for f in found])


def batches_decoder(
    whole: Message, readings: Sequence[Reading], columns: Columns
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """For ``mapInArrow``: ``whole`` has all columns, ``readings`` are by the place of the writer's
    schema. What a reading ``also`` is comes last, in their order.
    """

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = _Decoder(whole, readings)
        for batch in batches:
            rest = [name for name in batch.schema.names if name != columns.body]
            bodies, writers = batch.column(columns.body), batch.column(columns.writer)
            made = decoder.decoded(bodies, writers)
            also = [each.also[0] for each in readings if each.also]
            names = [*rest, columns.struct, columns.unknown, *also]
            yield pa.RecordBatch.from_arrays([*map(batch.column, rest), *made], names)

    return decode


class _Decoder:
    """Decodes messages of several writers."""

    def __init__(self, whole: Message, readings: Sequence[Reading]) -> None:
        self._readings = readings
        self._type = arrow_type(whole)
        wanted = {whole, *(each.message for each in readings)}
        wanted |= {each.also[1] for each in readings if each.also}
        self._readers = {message: _Reader(message) for message in wanted}

    def decoded(self, bodies: pa.Array, writers: pa.Array) -> list[pa.Array]:
        """The messages, the names of their unknown fields, and what they are besides."""
        # the place of the writer is null where there is no body either
        present = [i for i in pc.unique(writers).to_pylist() if i is not None]
        messages = {self._readings[i].message for i in present}
        if len(messages) == 1:
            names = [self._readings[i or 0].names for i in range(len(self._readings))]
            values, unknown = self._readers[messages.pop()].read(bodies, names, writers)
            made = [self._whole(values), unknown]
        else:
            made = self._by_message(bodies, writers, present)
        for i, each in enumerate(self._readings):
            if each.also:
                here = pc.fill_null(pc.equal(writers, i), False)
                own = pc.if_else(here, bodies, pa.scalar(None, bodies.type))
                made.append(self._readers[each.also[1]].read(own, (), writers)[0])
        return made

    def _by_message(
        self, bodies: pa.Array, writers: pa.Array, present: Sequence[int]
    ) -> list[pa.Array]:
        """The first two, of readings as several messages, or of none."""
        values = pa.nulls(len(bodies), self._type)
        unknown = pa.nulls(len(bodies), pa.list_(pa.string()))
        names = [each.names for each in self._readings]
        for message in {self._readings[i].message: None for i in present}:
            ours = [i for i in present if self._readings[i].message == message]
            here = pc.fill_null(pc.is_in(writers, pa.array(ours, writers.type)), False)
            own = pc.if_else(here, bodies, pa.scalar(None, bodies.type))
            read, more = self._readers[message].read(own, names, writers)
            values = pc.if_else(here, self._whole(read), values)
            unknown = pc.if_else(here, more, unknown)
        return [values, unknown]

    def _whole(self, values: pa.Array) -> pa.Array:
        """With a null for each column that is not there."""
        if values.type == self._type:
            return values
        there = dict(zip((f.name for f in values.type), values.flatten(), strict=True))
        arrays = [there.get(f.name, pa.nulls(len(values), f.type)) for f in self._type]
        return pa.StructArray.from_arrays(arrays, fields=list(self._type), mask=values.is_null())


class _Reader:
    """Reads messages of one type."""

    def __init__(self, message: Message) -> None:
        import ptars
        from google.protobuf import message as messages
        from google.protobuf import message_factory

        pool = _pool((*message.files, _batch_file(message)))
        descriptor = pool.FindMessageTypeByName(message.name)
        batch = pool.FindMessageTypeByName("eo.Batch")
        self._message = message_factory.GetMessageClass(descriptor)
        self._batch = message_factory.GetMessageClass(batch)
        self._refused = messages.DecodeError
        self._handler = ptars.HandlerPool([batch.file], config=_config()).get_for_message(batch)
        self._type = arrow_type(message)
        self._requires = _requires(descriptor)

    def read(
        self, bodies: pa.Array, names: Sequence[Names], writers: pa.Array
    ) -> tuple[pa.Array, pa.Array]:
        """The messages, null for null and for what is none, and the names of unknown fields."""
        starts = self._starts(bodies)
        read = [
            self._read(bodies.slice(start, n), names, writers.slice(start, n))
            for start, n in starts
        ]
        if len(read) == 1:
            return read[0]
        values, unknown = zip(*read, strict=True)
        return pa.concat_arrays(values), pa.concat_arrays(unknown)

    def _starts(self, bodies: pa.Array) -> list[tuple[int, int]]:
        """Of parts of at most so many bytes, or of one message, and how long each is."""
        if bodies.nbytes <= _AT_ONCE:
            return [(0, len(bodies))]
        found, start, size = [], 0, 0
        for i, length in enumerate(pc.binary_length(bodies).to_pylist()):
            if size and size + (length or 0) > _AT_ONCE:
                found.append((start, i - start))
                start, size = i, 0
            size += length or 0
        return [*found, (start, len(bodies) - start)]

    def _read(
        self, bodies: pa.Array, names: Sequence[Names], writers: pa.Array
    ) -> tuple[pa.Array, pa.Array]:
        places = pc.indices_nonzero(bodies.is_valid()).cast(pa.int64())
        given = bodies.drop_null()
        found = self._parsed(given)
        if found is None:  # some are none
            good = pa.array([self._is_message(each.as_py()) for each in given], pa.bool_())
            places, given = places.filter(good), given.filter(good)
            found = self._parsed(given)
        assert found is not None
        whole = found.SerializePartialToString()
        found.DiscardUnknownFields()
        known = found.SerializePartialToString()  # quicker than to ask how long it is
        values, beyond = self._columns(known, len(given))
        unknown: list[list[str] | None] = [None] * len(bodies)
        if len(known) != len(whole):
            again = self._batch.FromString(whole)
            for place, left, every in zip(places.to_pylist(), found.m, again.m, strict=True):
                if left.ByteSize() != every.ByteSize():
                    named = names[writers[place].as_py()] if names else {}
                    told = {named.get(at, name) for at, name in _unknown(every, (), "")}
                    unknown[place] = sorted(name for name in told if name is not None) or None
        for place, name in zip(places.to_pylist(), beyond, strict=True):
            if name is not None:
                unknown[place] = [name]
        if len(places) < len(bodies):
            back: list[int | None] = [None] * len(bodies)
            for i, place in enumerate(places.to_pylist()):
                back[place] = i
            values = values.take(pa.array(back, pa.int64()))
        return values, pa.array(unknown, pa.list_(pa.string()))

    def _parsed(self, given: pa.Array) -> Any:
        """All as one message; None if one of them is none."""
        lengths = pc.binary_length(given).dictionary_encode()
        fronts = [_ELEMENT + _varint(each) for each in lengths.dictionary.to_pylist()]
        front = pa.array(fronts, given.type).take(lengths.indices)
        joined = pc.binary_join_element_wise(front, given, pa.scalar(b"", given.type))
        try:
            found = self._batch.FromString(b"".join(joined.to_pylist()))
        except self._refused:
            return None
        return found if not self._requires or found.IsInitialized() else None

    def _is_message(self, body: bytes) -> bool:
        try:
            return bool(self._message.FromString(body).IsInitialized())
        except self._refused:
            return False

    def _columns(self, whole: bytes, count: int) -> tuple[pa.Array, list[str | None]]:
        """Of so many messages; null if a time in one is none that Protobuf allows, and the names of
        the fields that this is so of.
        """
        batch = self._handler.array_to_record_batch(pa.array([whole], pa.binary()))
        read = batch.column(0).flatten()
        columns = read.flatten()
        beyond: list[str | None] = [None] * count
        for field, column in zip(read.type, columns, strict=True):
            if _is_beyond(column):
                for i in range(count):
                    if beyond[i] is None and _is_beyond(column.slice(i, 1)):
                        beyond[i] = field.name
        arrays = [a.cast(f.type) for a, f in zip(columns, self._type, strict=True)]
        if not arrays:
            return pa.array([{}] * count, self._type), beyond
        mask = pa.array([name is not None for name in beyond], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self._type), mask=mask), beyond


def _batch_file(message: Message) -> bytes:
    """Of a message ``eo.Batch`` with many of that one."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

    file = FileDescriptorProto(name="eo/batch.proto", package="eo", syntax="proto3")
    for each in message.files:
        file.dependency.append(FileDescriptorProto.FromString(each).name)
    file.message_type.add(name="Batch").field.add(
        name="m",
        number=1,
        label=FieldDescriptorProto.LABEL_REPEATED,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".{message.name}",
    )
    return bytes(file.SerializeToString())


def _requires(descriptor: Any) -> bool:
    """Whether a message has fields that must be there, also in others; none is within itself."""
    return any(
        field.is_required or (field.message_type is not None and _requires(field.message_type))
        for field in descriptor.fields
    )


def _varint(number: int) -> bytes:
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


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
