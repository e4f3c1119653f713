"""Protobuf messages: what of one can become columns, and what two versions of one differ in."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eo_pipeline.source import protobuf_files, protobuf_made
from eo_pipeline.source.protobuf_files import ProtoError, own_file
from eo_pipeline.source.shapes import ARRAY, MAP, STRUCT, Shape, is_wider

_TAKEN = frozenset({"_kafka", "_eo_ok"})

#: Messages that are one value.
_VALUES = frozenset(
    {
        *("google.protobuf.Timestamp", "google.protobuf.Duration"),
        *(
            f"google.protobuf.{kind}Value"
            for kind in (
                *("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String"),
                "Bytes",
            )
        ),
    }
)

#: FieldDescriptor's numbers of types, and the names they have in a .proto file.
_TYPES = dict(
    enumerate(
        (
            *("double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool"),
            *("string", "group", "message", "bytes", "uint32", "enum", "sfixed32", "sfixed64"),
            *("sint32", "sint64"),
        ),
        start=1,
    )
)

#: Written as the one, what the other reads is the same value.
_READ_AS = {
    "int32": {"int64"},
    "uint32": {"int64", "uint64"},
    "bool": {"int32", "int64", "uint32", "uint64"},
    "enum": {"int32", "int64"},
    "sint32": {"sint64"},
    "string": {"bytes"},
    "bytes": {"string"},
}


@dataclass(frozen=True)
class Protobuf:
    """One message of each schema: that of the name ``message``, or the first of its file."""

    message: str = ""

    def fault_of(self, text: str) -> str | None:
        """See :class:`eo_pipeline.source.kinds.SchemaKind`."""
        try:
            found = self.descriptor(text)
        except ProtoError as error:
            return str(error)
        if found is None:
            return f"has no message {self.message}" if self.message else "has no message"
        names = [field.name for field in found.fields]
        if not names:
            return f"has the message {found.full_name} without fields: they would be the columns"
        if taken := _TAKEN.intersection(names):
            return f"has a field {min(taken)}, a name that is taken"
        for path, reason in _faults(found, (), frozenset()):
            return f"has a field {'.'.join(path)} that {reason}"
        return None

    def field_names(self, text: str) -> list[str]:
        """See :class:`eo_pipeline.source.kinds.SchemaKind`."""
        return [field.name for field in self._found(text).fields]

    def left_out(self, writer: str, reader: str) -> list[str]:
        """The same; fields are told by their numbers, and named as the writer names them."""
        return sorted(set(self.names_left_out(writer, reader).values()))

    def names_left_out(self, writer: str, reader: str) -> dict[tuple[int, ...], str]:
        """The same paths, by the numbers of the fields that lead to each."""
        written, read = self.descriptor(writer), self.descriptor(reader)
        return dict(_left_out(written, read, (), ())) if written and read else {}

    def shape_of(self, text: str) -> Shape:
        """See :class:`eo_pipeline.source.kinds.SchemaKind`. A writer's file may not have the
        message, or one that is within itself, which is looked into once.
        """
        found = self.descriptor(text)
        return _shape_of(found, frozenset()) if found else Shape(STRUCT)

    def partly(self, before: str, now: str, as_before: Collection[str]) -> str:
        """See :class:`eo_pipeline.source.kinds.SchemaKind`."""
        return protobuf_made.partly(self._found(before), self._found(now), as_before)

    def self_contained(self, text: str, references: Mapping[str, str]) -> str:
        """See :class:`eo_pipeline.source.kinds.SchemaKind`."""
        return protobuf_files.self_contained(text, references)

    def clash(self, writer: str, reader: str) -> str | None:
        """Why what was written by ``writer`` means something else to ``reader``; None if not."""
        written = self.descriptor(writer)
        if written is None:
            return None
        return next(_clashes(written, self._found(reader), ()), None)

    def castable(self, writer: str, reader: str) -> list[str]:
        """Columns whose bytes mean something else to ``reader``, but whose values are all ones that
        it could have.
        """
        read = self._found(reader).fields_by_name
        found = []
        for field in self._found(writer).fields:
            other = read.get(field.name)
            if other is None or other.number != field.number or _reads(field, other):
                continue
            was, now = (_of_field(each, frozenset()) for each in (field, other))
            if not (was.parts or now.parts) and (was == now or is_wider(now.type, was.type)):
                found.append(field.name)
        return found

    def presentable(self, text: str) -> list[str]:
        """The names of the fields that could be columns."""
        found = self._found(text)
        faulty = {path[0] for path, _ in _faults(found, (), frozenset())}
        return [field.name for field in found.fields if field.name not in faulty]

    def when_absent(self, text: str, name: str) -> Any:
        """What a scalar field is that is not there."""
        field = self._found(text).fields_by_name[name]
        if field.has_presence:
            return None
        if field.enum_type is not None:
            return field.enum_type.values_by_number[field.default_value].name
        return field.default_value

    def indexes(self, text: str) -> tuple[int, ...] | None:
        """Where in its file the message is: its place, or those of the messages that it is in and
        then its own; None if it is not there.
        """
        found, place = self.descriptor(text), list[int]()
        while found is not None:
            around = found.containing_type
            beside = around.nested_types if around else found.file.message_types_by_name.values()
            place.insert(0, list(beside).index(found))
            found = around
        return tuple(place) or None

    def descriptor(self, text: str) -> Any:
        """The message's, None if the file has none of that name.

        Raises:
            ProtoError: the files cannot be compiled.
            SetupError: a package is not installed.
        """
        file = own_file(text)
        if not self.message:
            return next(iter(file.message_types_by_name.values()), None)
        inside = self.message.removeprefix(f"{file.package}.") if file.package else self.message
        first, *more = inside.split(".")
        found = file.message_types_by_name.get(first)
        for name in more:
            found = None if found is None else found.nested_types_by_name.get(name)
        return found

    def _found(self, text: str) -> Any:
        found = self.descriptor(text)
        assert found is not None, "fault_of was asked before"
        return found


def is_value(message: Any) -> bool:
    """Whether the message is read as one value."""
    return message.full_name in _VALUES


def is_map(field: Any) -> bool:
    """Whether a repeated message is a map's entry."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _inner(field: Any) -> Any:
    """The message whose fields a field's value has; None if it has none."""
    message = field.message_type
    return None if message is None or is_value(message) else message


def _faults(
    message: Any, path: tuple[str, ...], around: frozenset[str]
) -> Iterator[tuple[tuple[str, ...], str]]:
    around |= {message.full_name}
    lower: dict[str, str] = {}
    for field in message.fields:
        below = (*path, field.name)
        if (first := lower.setdefault(field.name.lower(), field.name)) != field.name:
            yield below, f"differs from {first} only in case"
        if _TYPES[field.type] == "group":
            yield below, "is a group, which nothing reads any more"
        inner = _inner(field)
        if inner is None:
            continue
        if inner.full_name in around:
            yield (
                below,
                f"refers to the message {inner.full_name} that it is in: no table has such a "
                "column",
            )
        elif not inner.fields:
            yield below, f"is a message without fields, {inner.full_name}"
        else:
            yield from _faults(inner, below, around)


def _left_out(
    writer: Any, reader: Any, numbers: tuple[int, ...], path: tuple[str, ...]
) -> Iterator[tuple[tuple[int, ...], str]]:
    wanted = {field.number: field for field in reader.fields}
    for field in writer.fields:
        leading, below = (*numbers, field.number), (*path, field.name)
        if field.number not in wanted:
            yield leading, ".".join(below)
            continue
        written, read = _inner(field), _inner(wanted[field.number])
        if written is not None and read is not None:
            if is_map(field) and is_map(wanted[field.number]):
                written, read = _held(written), _held(read)
            if written is not None and read is not None:
                yield from _left_out(written, read, leading, below)


def _held(entry: Any) -> Any:
    """The message that a map's values are, if they are messages."""
    return _inner(entry.fields_by_name["value"])


def _clashes(writer: Any, reader: Any, path: tuple[str, ...]) -> Iterator[str]:
    wanted = {field.number: field for field in reader.fields}
    for field in writer.fields:
        other = wanted.get(field.number)
        if other is None:
            continue
        below = (*path, field.name)
        written, read = _inner(field), _inner(other)
        if not _reads(field, other):
            was = f"{'repeated ' if field.is_repeated else ''}{type_of(field)}"
            said = f"is {was} in it, not {type_of(other)}"
            yield f"field {'.'.join(below)}, number {field.number}, {said}"
        elif written is not None and read is not None:
            yield from _clashes(written, read, below)


def _reads(field: Any, other: Any) -> bool:
    """Whether what was written as the one is the same value to the other, messages aside."""
    was, now = type_of(field), type_of(other)
    if field.is_repeated and not other.is_repeated:
        return False
    return was == now or now in _READ_AS.get(was, ())


def type_of(field: Any) -> str:
    """The type as a .proto file names it; of one value by its full name."""
    message = field.message_type
    if message is not None and is_value(message):
        return str(message.full_name)
    if message is not None and is_map(field):
        return "map"
    return _TYPES[field.type]


#: What a scalar becomes, by :data:`_TYPES`; the others by their own names.
_SPARK = {
    **dict.fromkeys(("sint32", "sfixed32", "int32"), "int"),
    **dict.fromkeys(("uint32", "fixed32", "int64", "sint64", "sfixed64"), "bigint"),
    **dict.fromkeys(("uint64", "fixed64"), "decimal(20,0)"),
    "bool": "boolean",
    "bytes": "binary",
}


def _shape_of(message: Any, around: frozenset[str]) -> Shape:
    if message.full_name in around:
        return Shape(message.full_name)
    within = around | {message.full_name}
    fields = ((field.name, _of_field(field, within)) for field in message.fields)
    return Shape(STRUCT, tuple(fields))


def _of_field(field: Any, around: frozenset[str]) -> Shape:
    if is_map(field):
        value = field.message_type.fields_by_name["value"]
        return Shape(MAP, (("", _of_one(value, around)),))
    one = _of_one(field, around)
    return Shape(ARRAY, (("", one),)) if field.is_repeated else one


def _of_one(field: Any, around: frozenset[str]) -> Shape:
    message = field.message_type
    if message is not None and is_value(message):
        if message.name in ("Timestamp", "Duration"):
            return Shape("timestamp" if message.name == "Timestamp" else "bigint")
        return _of_one(message.fields_by_name["value"], around)
    if message is not None:
        return _shape_of(message, around)
    kind = _TYPES[field.type]
    if kind == "enum":
        return Shape("string", symbols=tuple(each.name for each in field.enum_type.values))
    return Shape(_SPARK.get(kind, kind))


def prefixes(indexes: Sequence[int] | None) -> list[bytes]:
    """What says in front of a message which of its file's it is, in all forms: how many indexes,
    and the indexes; or for the first one, which comes first, one zero. None is none.
    """
    if indexes is None:
        return []
    written = b"".join(_varint(each) for each in (len(indexes), *indexes))
    return [b"\x00", written] if tuple(indexes) == (0,) else [written]


def messages_named(text: str, values: Iterable[bytes | None]) -> list[str]:
    """Names of the messages of a schema's own file that ``values`` say they are, which begin with a
    registry's number: as ``message`` takes them, in the file's order.
    """
    bodies = [value[5:] for value in values if value and value[:1] == b"\x00"]
    named = []
    for name in _names(own_file(text).message_types_by_name.values()):
        begins = tuple(prefixes(Protobuf(name).indexes(text)))
        if any(body.startswith(begins) for body in bodies):
            named.append(name)
    return named


def _names(messages: Iterable[Any], outer: str = "") -> Iterator[str]:
    for each in messages:
        yield outer + each.name
        yield from _names(each.nested_types, f"{outer}{each.name}.")


def _varint(number: int) -> bytes:
    """Zigzag, of a number that is not negative."""
    rest, made = number << 1, bytearray()
    while rest > 0x7F:
        made.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*made, rest])
