"""Protobuf to Arrow, in Spark's Python workers. They need ``ptars`` and ``protobuf``, and not this
package: the module is sent with the task.

Google's decoder checks that bytes are a message and serializes them again, since decoders disagree
about duplicate fields and about two members of a oneof. Then ptars makes columns of the result.
Both take a batch at once: its messages are the elements of a repeated field of one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

#: First microsecond of year 1 and last of year 9999, since 1970.
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999

#: Microseconds of Protobuf's longest duration, 10,000 years and nearly a second.
_LONGEST = 315_576_000_000_999_999

#: Bytes that are decoded at once; a Protobuf message may have two gigabytes.
_AT_ONCE = 32 << 20

#: Tag of an element of field number 1; the length of the element follows.
_ELEMENT = b"\x0a"

#: Names of unknown fields by the numbers that lead to them; None for fields that are not counted.
Names = Mapping[tuple[int, ...], str | None]


@dataclass(frozen=True)
class Message:
    """A message of ``files``, serialized FileDescriptorProtos, by its full ``name``."""

    files: tuple[bytes, ...]
    name: str


@dataclass(frozen=True)
class WriterPlan:
    """Instructions for the records of one writer."""

    #: its fields are all columns of the reader, or some
    message: Message
    #: of unknown fields
    names: Names
    #: a further column, and the message to decode into it
    extra: tuple[str, Message] | None = None


@dataclass(frozen=True)
class Columns:
    """Names of columns."""

    #: of the serialized messages; it is dropped
    body: str
    #: of the writer's index
    writer: str
    #: added: the message, null if it cannot be decoded
    struct: str
    #: added: the names of unknown fields, null if there are none; of a message that is null because
    #: of an invalid time, the name of its field
    unknown: str


def arrow_type(message: Message) -> pa.StructType:
    """Return the Arrow type of a message."""
    import ptars

    schema = ptars.get_schema(_pool(message.files).FindMessageTypeByName(message.name), _config())
    return pa.struct([pa.field(f.name, _spark_compatible(f.type)) for f in schema])


def batches_decoder(
    reader: Message, plans: Sequence[WriterPlan], columns: Columns
) -> Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]:
    """Return the function for ``mapInArrow``. ``reader`` has all columns; ``plans`` are by the
    index of the writer. Their further columns come last, in this order.
    """

    def decode(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        decoder = _Decoder(reader, plans)
        for batch in batches:
            rest = [name for name in batch.schema.names if name != columns.body]
            bodies, writers = batch.column(columns.body), batch.column(columns.writer)
            decoded = decoder.decoded(bodies, writers)
            extra = [plan.extra[0] for plan in plans if plan.extra]
            names = [*rest, columns.struct, columns.unknown, *extra]
            yield pa.RecordBatch.from_arrays([*map(batch.column, rest), *decoded], names)

    return decode


class _Decoder:
    """Decodes messages of several writers."""

    def __init__(self, reader: Message, plans: Sequence[WriterPlan]) -> None:
        self._plans = plans
        self._type = arrow_type(reader)
        messages = {reader, *(plan.message for plan in plans)}
        messages |= {plan.extra[1] for plan in plans if plan.extra}
        self._readers = {message: _Reader(message) for message in messages}

    def decoded(self, bodies: pa.Array, writers: pa.Array) -> list[pa.Array]:
        """Return the messages, the names of their unknown fields, and the further columns."""
        # the index of the writer is null only where the body is null
        present = [i for i in pc.unique(writers).to_pylist() if i is not None]
        messages = {self._plans[i].message for i in present}
        if len(messages) == 1:
            names = [self._plans[i or 0].names for i in range(len(self._plans))]
            values, unknown = self._readers[messages.pop()].read(bodies, names, writers)
            arrays = [self._all_columns(values), unknown]
        else:
            arrays = self._by_message(bodies, writers, present)
        for i, plan in enumerate(self._plans):
            if plan.extra:
                is_writer = pc.fill_null(pc.equal(writers, i), False)
                selected = pc.if_else(is_writer, bodies, pa.scalar(None, bodies.type))
                arrays.append(self._readers[plan.extra[1]].read(selected, (), writers)[0])
        return arrays

    def _by_message(
        self, bodies: pa.Array, writers: pa.Array, present: Sequence[int]
    ) -> list[pa.Array]:
        """Return messages and unknown fields where several messages, or none, are decoded."""
        values = pa.nulls(len(bodies), self._type)
        unknown = pa.nulls(len(bodies), pa.list_(pa.string()))
        names = [plan.names for plan in self._plans]
        for message in {self._plans[i].message: None for i in present}:
            indexes = [i for i in present if self._plans[i].message == message]
            is_message = pc.fill_null(pc.is_in(writers, pa.array(indexes, writers.type)), False)
            selected = pc.if_else(is_message, bodies, pa.scalar(None, bodies.type))
            new_values, new_unknown = self._readers[message].read(selected, names, writers)
            values = pc.if_else(is_message, self._all_columns(new_values), values)
            unknown = pc.if_else(is_message, new_unknown, unknown)
        return [values, unknown]

    def _all_columns(self, values: pa.Array) -> pa.Array:
        """Add nulls for the missing columns."""
        if values.type == self._type:
            return values
        present = dict(zip((f.name for f in values.type), values.flatten(), strict=True))
        arrays = [present.get(f.name, pa.nulls(len(values), f.type)) for f in self._type]
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
        self._decode_error = messages.DecodeError
        self._handler = ptars.HandlerPool([batch.file], config=_config()).get_for_message(batch)
        self._type = arrow_type(message)
        self._requires = _requires(descriptor)

    def read(
        self, bodies: pa.Array, names: Sequence[Names], writers: pa.Array
    ) -> tuple[pa.Array, pa.Array]:
        """Return the messages, null for null and other bytes, and names of unknown fields."""
        parts = [
            self._read(bodies.slice(start, n), names, writers.slice(start, n))
            for start, n in self._slices(bodies)
        ]
        if len(parts) == 1:
            return parts[0]
        values, unknown = zip(*parts, strict=True)
        return pa.concat_arrays(values), pa.concat_arrays(unknown)

    def _slices(self, bodies: pa.Array) -> list[tuple[int, int]]:
        """Return start and length of slices: at most :data:`_AT_ONCE` bytes, or one message."""
        if bodies.nbytes <= _AT_ONCE:
            return [(0, len(bodies))]
        slices, start, size = [], 0, 0
        for i, length in enumerate(pc.binary_length(bodies).to_pylist()):
            if size and size + (length or 0) > _AT_ONCE:
                slices.append((start, i - start))
                start, size = i, 0
            size += length or 0
        return [*slices, (start, len(bodies) - start)]

    def _read(
        self, bodies: pa.Array, names: Sequence[Names], writers: pa.Array
    ) -> tuple[pa.Array, pa.Array]:
        rows = pc.indices_nonzero(bodies.is_valid()).cast(pa.int64())
        present = bodies.drop_null()
        batch = self._parsed(present)
        if batch is None:  # some are no messages
            good = pa.array([self._is_message(body.as_py()) for body in present], pa.bool_())
            rows, present = rows.filter(good), present.filter(good)
            batch = self._parsed(present)
        assert batch is not None
        all_fields = batch.SerializePartialToString()
        batch.DiscardUnknownFields()
        known_fields = batch.SerializePartialToString()  # faster than ByteSize()
        values, invalid = self._columns(known_fields, len(present))
        unknown: list[list[str] | None] = [None] * len(bodies)
        if len(known_fields) != len(all_fields):
            complete = self._batch.FromString(all_fields)
            for row, stripped, message in zip(rows.to_pylist(), batch.m, complete.m, strict=True):
                if stripped.ByteSize() != message.ByteSize():
                    by_numbers = names[writers[row].as_py()] if names else {}
                    paths = {by_numbers.get(at, name) for at, name in _unknown(message, (), "")}
                    unknown[row] = sorted(name for name in paths if name is not None) or None
        for row, name in zip(rows.to_pylist(), invalid, strict=True):
            if name is not None:
                unknown[row] = [name]
        if len(rows) < len(bodies):
            back: list[int | None] = [None] * len(bodies)
            for i, row in enumerate(rows.to_pylist()):
                back[row] = i
            values = values.take(pa.array(back, pa.int64()))
        return values, pa.array(unknown, pa.list_(pa.string()))

    def _parsed(self, bodies: pa.Array) -> Any:
        """Parse all as one ``eo.Batch``; None if one of them is no message."""
        lengths = pc.binary_length(bodies).dictionary_encode()
        prefixes = [_ELEMENT + _varint(length) for length in lengths.dictionary.to_pylist()]
        prefix = pa.array(prefixes, bodies.type).take(lengths.indices)
        joined = pc.binary_join_element_wise(prefix, bodies, pa.scalar(b"", bodies.type))
        try:
            batch = self._batch.FromString(b"".join(joined.to_pylist()))
        except self._decode_error:
            return None
        return batch if not self._requires or batch.IsInitialized() else None

    def _is_message(self, body: bytes) -> bool:
        try:
            return bool(self._message.FromString(body).IsInitialized())
        except self._decode_error:
            return False

    def _columns(self, batch: bytes, count: int) -> tuple[pa.Array, list[str | None]]:
        """Return the messages of a serialized ``eo.Batch`` of ``count``, null for those with a time
        that Protobuf does not allow; and the name of the field of such a time.
        """
        decoded = self._handler.array_to_record_batch(pa.array([batch], pa.binary()))
        messages = decoded.column(0).flatten()
        columns = messages.flatten()
        invalid: list[str | None] = [None] * count
        for field, column in zip(messages.type, columns, strict=True):
            if _has_invalid_time(column):
                for i in range(count):
                    if invalid[i] is None and _has_invalid_time(column.slice(i, 1)):
                        invalid[i] = field.name
        arrays = [a.cast(f.type) for a, f in zip(columns, self._type, strict=True)]
        if not arrays:
            return pa.array([{}] * count, self._type), invalid
        mask = pa.array([name is not None for name in invalid], pa.bool_())
        return pa.StructArray.from_arrays(arrays, fields=list(self._type), mask=mask), invalid


def _batch_file(message: Message) -> bytes:
    """Return a serialized file with the message ``eo.Batch``, a repeated field of ``message``."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

    file = FileDescriptorProto(name="eo/batch.proto", package="eo", syntax="proto3")
    for serialized in message.files:
        file.dependency.append(FileDescriptorProto.FromString(serialized).name)
    file.message_type.add(name="Batch").field.add(
        name="m",
        number=1,
        label=FieldDescriptorProto.LABEL_REPEATED,
        type=FieldDescriptorProto.TYPE_MESSAGE,
        type_name=f".{message.name}",
    )
    return bytes(file.SerializeToString())


def _requires(descriptor: Any) -> bool:
    """Return whether a message, which is not recursive, has required fields at any depth."""
    return any(
        field.is_required or (field.message_type is not None and _requires(field.message_type))
        for field in descriptor.fields
    )


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*encoded, number])


def _pool(files: Sequence[bytes]) -> Any:
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for file in files:
        pool.AddSerializedFile(file)
    return pool


def _config() -> Any:
    import ptars

    return ptars.PtarsConfig(enum_repr="string", timestamp_unit="us", duration_unit="us")


def _unknown(
    message: Any, numbers: tuple[int, ...], path: str
) -> Iterator[tuple[tuple[int, ...], str]]:
    """Yield for each unknown field the numbers that lead to it, and a name."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    for unknown in UnknownFieldSet(message):
        yield (*numbers, unknown.field_number), f"{path}#{unknown.field_number}"
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for inner in _messages(field, value):
            yield from _unknown(inner, (*numbers, field.number), f"{path}{field.name}.")


def _messages(field: Any, value: Any) -> Iterable[Any]:
    """Return the messages within the value of a field."""
    if not field.is_repeated:
        return [value]
    if not field.message_type.GetOptions().map_entry:
        return value  # type: ignore[no-any-return]
    value_field = field.message_type.fields_by_name["value"]
    return value.values() if value_field.message_type is not None else ()


def _spark_compatible(kind: pa.DataType) -> pa.DataType:
    """Return the narrowest type of Spark that holds all values of ``kind``."""
    if pa.types.is_uint32(kind) or pa.types.is_duration(kind) or pa.types.is_time(kind):
        return pa.int64()
    if pa.types.is_uint64(kind):
        return pa.decimal128(20, 0)
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _spark_compatible(f.type)) for f in kind])
    if pa.types.is_map(kind):
        return pa.map_(_spark_compatible(kind.key_type), _spark_compatible(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(_spark_compatible(kind.value_type))
    return kind


def _has_invalid_time(array: pa.Array) -> bool:
    """Return whether a time or duration within is outside Protobuf's range."""
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        first, last = (_FIRST, _LAST) if pa.types.is_timestamp(kind) else (-_LONGEST, _LONGEST)
        numbers = pc.min_max(array.cast(pa.int64()))
        low, high = numbers["min"].as_py(), numbers["max"].as_py()
        return low is not None and (low < first or high > last)
    if pa.types.is_struct(kind):
        return any(map(_has_invalid_time, array.flatten()))
    if pa.types.is_map(kind):
        return _has_invalid_time(array.items)
    return pa.types.is_list(kind) and _has_invalid_time(array.flatten())
