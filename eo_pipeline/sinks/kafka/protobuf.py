"""Columns as a Protobuf message: the schema that is theirs, and whether one that somebody wrote
takes them.

A field of Protobuf is its number. So a schema that is there is never made anew: it grows.
"""

from __future__ import annotations

import json
import operator
import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any

from eo_pipeline._lazy import library
from eo_pipeline.errors import SchemaChangeError
from eo_pipeline.formats.protobuf import Protobuf, files_of, is_map, is_value, type_of
from eo_pipeline.sinks.columns import Unfit

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

#: By the names that Spark gives its types; the first is what a field that is made has.
_SCALARS: Mapping[str, tuple[str, ...]] = {
    "boolean": ("bool",),
    **dict.fromkeys(("byte", "short", "integer"), ("int32", "sint32", "sfixed32")),
    "long": ("int64", "sint64", "sfixed64"),
    "float": ("float",),
    "double": ("double",),
    "string": ("string", "enum"),
    "binary": ("bytes",),
}

#: Values that are messages, and the files that these are in.
_MESSAGES: Mapping[str, tuple[str, str]] = {
    "date": ("google.type.Date", "google/type/date.proto"),
    "timestamp": ("google.protobuf.Timestamp", "google/protobuf/timestamp.proto"),
    "decimal": ("confluent.type.Decimal", "confluent/type/decimal.proto"),
}

#: Of a map.
_KEYS = frozenset({"boolean", "byte", "short", "integer", "long", "string"})

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NO_NAME = re.compile(r"[^A-Za-z0-9_]")

#: Numbers that Protobuf keeps for itself.
_RESERVED = range(19_000, 20_000)

#: Numbers that take two bytes in front of a value; those below take one.
_TWO_BYTES = range(16, 2048)


def as_message(data_type: DataType, name: str | None) -> StructType:
    """The fields of a message of such values: a struct's; otherwise one, ``name``."""
    from pyspark.sql.types import StructField, StructType

    if isinstance(data_type, StructType):
        return data_type
    return StructType([StructField(name or "value", data_type)])


def derived(struct: StructType, topic: str, part: str) -> str:
    """A file with the one message ``part`` (``Key`` or ``Value``) of ``struct``, as
    :mod:`eo_pipeline.formats.protobuf` has texts.

    Raises:
        SchemaChangeError: Protobuf has nothing for a column's type or name.
    """
    descriptors = library("google.protobuf.descriptor_pb2")
    package = _NO_NAME.sub("_", topic)
    package = package if _NAME.fullmatch(package) else f"_{package}"
    file = descriptors.FileDescriptorProto(
        name=f"{package}_{part.lower()}.proto", package=package, syntax="proto3"
    )
    file.message_type.add(name=part)
    return _grown(file, struct, Protobuf(part), {}, _next_number)


def grown(text: str, struct: StructType, kind: Protobuf) -> str:
    """``text`` whose message of that ``kind`` takes ``struct``: fields it lacks are added, with
    numbers that none has, and ``int32`` becomes ``int64``. Nothing is removed.

    A field's number follows from its name: who adds another one to the same ``text`` at the same
    time takes another number, and who adds the same one takes the same.

    Raises:
        SchemaChangeError: that does not do; or Protobuf has nothing for a column's type or name.
    """
    file, others = _file(text)
    return _grown(file, struct, kind, others, _own_number)


def instead_of(number: int, text: str, kind: Protobuf) -> str:
    """``text`` as another version, which reserves a name after schema ``number`` and says no more:
    content that a registry has already it does not put on top again.
    """
    file, others = _file(text)
    growing, _ = _message_in(file, kind)
    growing.reserved_name.append(f"_instead_of_schema_{number}")
    return _document(file, others)


def meanings(text: str, kind: Protobuf) -> set[tuple[int, str]]:
    """The numbers and names of the fields of its message."""
    descriptor = kind.descriptor(text)
    return {(field.number, field.name) for field in descriptor.fields} if descriptor else set()


def own_content(text: str) -> str:
    """Content for the registry: the file itself, in base64 as confluent-kafka's serializer has
    it.
    """
    whole = json.loads(text)
    content: str = whole["files"][whole["file"]]
    return content


def _grown(
    file: Any,
    struct: StructType,
    kind: Protobuf,
    others: Mapping[str, str],
    number: Callable[[Any, str], int],
) -> str:
    growing, scope = _message_in(file, kind)
    _Growing(file, number).grow(growing, struct, scope, ())
    document = _document(file, others)
    if faults := [*misfits(struct, kind.descriptor(document))]:
        raise SchemaChangeError(
            f"The message {scope[1:]} cannot grow into the columns: {'; '.join(faults)}. Nothing "
            "was read. Give the column another name in the transform, or register a schema that "
            "takes it."
        )
    return document


def _file(text: str) -> tuple[Any, dict[str, str]]:
    """The descriptor of its file, and the files that one imports."""
    file = library("google.protobuf.descriptor_pb2").FileDescriptorProto()
    file.ParseFromString(files_of(text)[-1])
    whole = json.loads(text)
    others = {name: held for name, held in whole["files"].items() if name != whole["file"]}
    file.name = whole["file"]
    return file, others


def _document(file: Any, others: Mapping[str, str]) -> str:
    content = b64encode(file.SerializeToString()).decode()
    return json.dumps({"file": file.name, "files": {**others, file.name: content}})


def _message_in(file: Any, kind: Protobuf) -> tuple[Any, str]:
    """The message of that ``kind``, and its full name with a dot in front."""
    package = f".{file.package}" if file.package else ""
    if not kind.message:
        first = file.message_type[0]
        return first, f"{package}.{first.name}"
    inside = kind.message.removeprefix(f"{file.package}.") if file.package else kind.message
    match, beside = None, file.message_type
    for name in inside.split("."):
        match = next(message for message in beside if message.name == name)
        beside = match.nested_type
    return match, f"{package}.{inside}"


class _Growing:
    """Adds fields to the messages of one ``file``, each with a ``number`` by message and name."""

    def __init__(self, file: Any, number: Callable[[Any, str], int]) -> None:
        self._file = file
        self._number = number
        self._field = library("google.protobuf.descriptor_pb2").FieldDescriptorProto

    def grow(self, message: Any, struct: StructType, scope: str, path: tuple[str, ...]) -> None:
        there = {field.name: field for field in message.field}
        for column in struct:
            at = (*path, column.name)
            if column.name in there:
                self._widen(there[column.name], column.dataType, at)
            else:
                self._add(message, column.name, column.dataType, scope, at)

    def _widen(self, field: Any, data_type: DataType, path: tuple[str, ...]) -> None:
        """Widen fields where possible; the rest is reported by :func:`misfits`."""
        from pyspark.sql import types as T

        if isinstance(data_type, T.LongType) and field.type == self._field.TYPE_INT32:
            field.type = self._field.TYPE_INT64
        if isinstance(data_type, T.ArrayType):
            data_type = data_type.elementType
        inner = self._message(field.type_name)
        if isinstance(data_type, T.MapType) and inner is not None:
            self._widen(inner.field[1], data_type.valueType, path)
        elif isinstance(data_type, T.StructType) and inner is not None:
            self.grow(inner, data_type, field.type_name, path)

    def _message(self, full_name: str) -> Any:
        """Of this file; None if it is of another one, or no message."""
        package = f".{self._file.package}." if self._file.package else "."
        if not full_name.startswith(package):
            return None
        match, beside = None, self._file.message_type
        for name in full_name.removeprefix(package).split("."):
            match = next((message for message in beside if message.name == name), None)
            beside = match.nested_type if match is not None else ()
        return match

    def _add(
        self, message: Any, name: str, data_type: DataType, scope: str, path: tuple[str, ...]
    ) -> None:
        from pyspark.sql import types as T

        if not _NAME.fullmatch(name):
            raise SchemaChangeError(
                f"{'.'.join(path)!r} is no name that Protobuf has: letters, digits and _ only. "
                "Nothing was read; rename the column in the transform."
            )
        field = message.field.add(name=name, number=self._number(message, name))
        field.label = self._field.LABEL_OPTIONAL
        if isinstance(data_type, T.MapType) and data_type.keyType.typeName() in _KEYS:
            field.label = self._field.LABEL_REPEATED
            entry = message.nested_type.add(name=f"{_camel(name)}Entry")
            entry.options.map_entry = True
            field.type, field.type_name = self._field.TYPE_MESSAGE, f"{scope}.{entry.name}"
            for number, (element, kind) in enumerate(
                (("key", data_type.keyType), ("value", data_type.valueType)), start=1
            ):
                inner = entry.field.add(name=element, number=number, label=field.label)
                inner.label = self._field.LABEL_OPTIONAL
                self._type(inner, kind, message, scope, (*path, element))
        elif isinstance(data_type, T.ArrayType):
            field.label = self._field.LABEL_REPEATED
            self._type(field, data_type.elementType, message, scope, (*path, "item"))
        else:
            self._type(field, data_type, message, scope, path)
            if field.type != self._field.TYPE_MESSAGE and self._file.syntax == "proto3":
                field.proto3_optional = True
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{name}")

    def _type(
        self, field: Any, data_type: DataType, message: Any, scope: str, path: tuple[str, ...]
    ) -> None:
        """Of ``field``, for one value of ``data_type``; ``message`` is where types are made."""
        from pyspark.sql import types as T

        kind = data_type.typeName()
        if isinstance(data_type, T.StructType):
            taken = {item.name for item in (*message.field, *message.nested_type)}
            name = _camel(path[-1] if path[-1] not in ("item", "value") else path[-2])
            while name in taken:
                name += "_"
            nested = message.nested_type.add(name=name)
            field.type, field.type_name = self._field.TYPE_MESSAGE, f"{scope}.{name}"
            self.grow(nested, data_type, field.type_name, path)
        elif kind in _MESSAGES:
            name, file = _MESSAGES[kind]
            field.type, field.type_name = self._field.TYPE_MESSAGE, f".{name}"
            if file not in self._file.dependency:
                self._file.dependency.append(file)
        elif kind in _SCALARS:
            field.type = self._field.Type.Value(f"TYPE_{_SCALARS[kind][0].upper()}")
        else:
            raise SchemaChangeError(
                f"Protobuf has no type for {'.'.join(path)} ({data_type.simpleString()}). Nothing "
                "was read; cast or drop it in the transform, or put it into a struct."
            )


def _own_number(message: Any, name: str) -> int:
    """Return a number derived from the name, or the next free one."""
    taken = {field.number for field in message.field}
    for reserved in (*message.reserved_range, *message.extension_range):
        taken.update(range(max(reserved.start, 0), min(reserved.end, _TWO_BYTES.stop)))
    free = [number for number in _TWO_BYTES if number not in taken]
    if not free:
        return _next_number(message, name)
    wanted = _TWO_BYTES[zlib.crc32(name.encode()) % len(_TWO_BYTES)]
    return next((number for number in free if number >= wanted), free[0])


def _next_number(message: Any, name: str) -> int:  # noqa: ARG001
    """One more than any that is there or was reserved."""
    used = [field.number for field in message.field]
    used += [reserved.end - 1 for reserved in message.reserved_range]
    number = max((n for n in used if n not in _RESERVED), default=0) + 1
    return _RESERVED.stop if number in _RESERVED else number


def _camel(name: str) -> str:
    """As protoc names the entry of a map."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) or "_"


def misfits(struct: StructType, message: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Reasons why rows of ``struct`` cannot be written as ``message``, a descriptor. Nulls and
    symbols are judged row by row.
    """
    there = {field.name: field for field in message.fields}
    for column in struct:
        at = (*path, column.name)
        if column.name not in there:
            yield f"it has no field {'.'.join(at)}"
            continue
        field = there[column.name]
        if field.containing_oneof is not None and len(field.containing_oneof.fields) > 1:
            yield f"{'.'.join(at)} is one of {field.containing_oneof.name} there, a oneof"
        else:
            yield from _field_misfits(column.dataType, field, at)
    for name in sorted(there.keys() - set(struct.names)):
        if there[name].is_required:
            yield f"no column is there for its field {'.'.join((*path, name))}, which is required"


def _field_misfits(data_type: DataType, field: Any, path: tuple[str, ...]) -> Iterator[str]:
    from pyspark.sql import types as T

    if isinstance(data_type, T.MapType) and is_map(field):
        entry = field.message_type.fields_by_name
        yield from _value_misfits(data_type.keyType, entry["key"], (*path, "key"))
        yield from _value_misfits(data_type.valueType, entry["value"], (*path, "value"))
    elif isinstance(data_type, T.ArrayType) and field.is_repeated and not is_map(field):
        yield from _value_misfits(data_type.elementType, field, (*path, "item"))
    elif isinstance(data_type, T.MapType | T.ArrayType) or field.is_repeated:
        many = "repeated " if field.is_repeated and not is_map(field) else ""
        yield f"{'.'.join(path)} is {data_type.simpleString()}, and {many}{type_of(field)} there"
    else:
        yield from _value_misfits(data_type, field, path)


def _value_misfits(data_type: DataType, field: Any, path: tuple[str, ...]) -> Iterator[str]:
    from pyspark.sql import types as T

    message, kind = field.message_type, data_type.typeName()
    if isinstance(data_type, T.StructType) and message is not None and not is_value(message):
        yield from misfits(data_type, message, path)
        return
    if message is not None and is_value(message) and "value" in message.fields_by_name:
        fits = type_of(message.fields_by_name["value"]) in _SCALARS.get(kind, ())
    elif message is not None:
        fits = kind in _MESSAGES and _MESSAGES[kind][0] == message.full_name
    else:
        fits = type_of(field) in _SCALARS.get(kind, ())
    if not fits:
        named = message.full_name if message is not None else type_of(field)
        yield f"{'.'.join(path)} is {data_type.simpleString()}, and {named} there"


def unfit(value: Column, struct: StructType, message: Any) -> Iterator[tuple[str, Unfit]]:
    """Conditions of a struct ``value`` without :func:`misfits` that ``message`` does not take, each
    with its column.
    """
    for column in struct:
        field = message.fields_by_name[column.name]
        for fault in _of_field(value.getField(column.name), column.dataType, field):
            yield column.name, fault


def _of_field(value: Column, data_type: DataType, field: Any) -> Iterator[Unfit]:
    from pyspark.sql import functions as F
    from pyspark.sql import types as T

    if isinstance(data_type, T.ArrayType):
        yield from _of_elements(value, data_type.elementType, field)
    elif isinstance(data_type, T.MapType):
        entry = field.message_type.fields_by_name["value"]
        yield from _of_elements(F.map_values(value), data_type.valueType, entry)
    else:
        if not field.has_presence or field.is_required:
            yield Unfit(value.isNull(), "null, which the registered schema has no form for")
        yield from _of_value(value, data_type, field)


def _of_value(value: Column, data_type: DataType, field: Any) -> Iterator[Unfit]:
    from pyspark.sql import types as T

    if isinstance(data_type, T.StructType):
        for name, fault in unfit(value, data_type, field.message_type):
            yield Unfit(value.isNotNull() & fault.condition, f"{fault.reason} ({name})")
    elif field.enum_type is not None:
        symbols = [symbol.name for symbol in field.enum_type.values]
        stranger = value.isNotNull() & ~value.isin(*symbols)
        yield Unfit(stranger, "a text that is no symbol of the registered schema's enum")


def _of_elements(values: Column, data_type: DataType, field: Any) -> Iterator[Unfit]:
    from pyspark.sql import functions as F

    def faults(value: Column) -> Iterator[Unfit]:
        yield Unfit(value.isNull(), "null within an array or a map, which Protobuf has no form for")
        yield from _of_value(value, data_type, field)

    def is_unfit(value: Column) -> Column:
        return reduce(
            operator.or_, (F.coalesce(fault.condition, F.lit(False)) for fault in faults(value))
        )

    reasons = [fault.reason for fault in faults(F.lit(None))]
    yield Unfit(F.exists(values, is_unfit), " or ".join(reasons))
