"""Protobuf schemas: compilation, conversion to columns, and comparison of two schemas.

A text is JSON: ``{"file": name, "files": {name: content}}``, the schema's file and all its imports
except those of Google and Confluent. The content is in a form of the registry: a .proto file, or a
serialized FileDescriptorProto in base64, which confluent-kafka registers.
"""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from eo_pipeline._lazy import library
from eo_pipeline.errors import ConfigError
from eo_pipeline.formats.base import SchemaKind
from eo_pipeline.formats.schema_diff import ARRAY, MAP, STRUCT, Shape, is_wider
from eo_pipeline.ledger.schemas import canonical

#: Name of a schema's file that has none.
_DEFAULT_NAME = "schema.proto"

#: Packages of files that are installed with the libraries, by their folders.
_BUILT_IN = {
    "google/": "google.",
    "confluent/": "confluent_kafka.schema_registry.confluent.",
}

_COMPILE_TIMEOUT_S = 60

#: Package of messages that ptars makes one value, with changes: a date without a day gets one.
_PLAIN = "google.type"


class ProtoError(ConfigError):
    """The text is the fault of a schema."""


@lru_cache(maxsize=64)
def files_of(text: str) -> tuple[bytes, ...]:
    """Return the serialized FileDescriptorProtos, imports first; the last one is the schema's file.

    Raises:
        ProtoError: they cannot be compiled.
        SetupError: a package is not installed.
    """
    schema = json.loads(text)
    files: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name, content in schema["files"].items():
        file = _descriptor(content)
        if file is None:
            texts[name] = content
        else:
            file.name = name
            files[name] = file
    if texts:
        files |= _compiled(texts, files)
    return tuple(file.SerializeToString() for file in _in_order(schema["file"], files, {}))


@lru_cache(maxsize=64)
def pool_of(text: str) -> Any:
    """Return a ``DescriptorPool`` of :func:`files_of`.

    Raises:
        ProtoError: the files do not fit together.
        SetupError: a package is not installed.
    """
    pool = library("google.protobuf.descriptor_pool").DescriptorPool()
    for file in files_of(text):
        try:
            pool.AddSerializedFile(file)
        except TypeError as error:
            raise ProtoError(f"does not fit together: {error}") from error
    return pool


@lru_cache(maxsize=64)
def plain_files(text: str) -> tuple[bytes, ...]:
    """Return :func:`files_of` with the messages of :data:`_PLAIN` renamed, for ptars to decode them
    as any message.
    """
    return tuple(map(_renamed, files_of(text)))


def _renamed(file: bytes) -> bytes:
    descriptor = library("google.protobuf.descriptor_pb2").FileDescriptorProto.FromString(file)
    if descriptor.package == _PLAIN:
        descriptor.package = f"eo.{_PLAIN}"
    messages: list[Any] = [*descriptor.message_type]
    while messages:
        message = messages.pop()
        messages.extend(message.nested_type)
        for field in message.field:
            if field.type_name.startswith(f".{_PLAIN}."):
                field.type_name = f".eo{field.type_name}"
    return bytes(descriptor.SerializeToString())


def _schema_file(text: str) -> Any:
    """Return the descriptor of the schema's file."""
    return pool_of(text).FindFileByName(json.loads(text)["file"])


def _descriptor(content: str) -> Any:
    """Return the FileDescriptorProto that is ``content`` in base64; None for a .proto file."""
    try:
        serialized = base64.b64decode(content.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    library("google.protobuf.message")
    file = library("google.protobuf.descriptor_pb2").FileDescriptorProto()
    try:
        file.ParseFromString(serialized)
    except library("google.protobuf.message").DecodeError:
        return None
    return file


def _compiled(texts: Mapping[str, str], compiled: Mapping[str, Any]) -> dict[str, Any]:
    """Compile with protoc. ``compiled``: files that need no compilation."""
    tools = Path(library("grpc_tools").__file__).parent
    descriptors = library("google.protobuf.descriptor_pb2")
    with tempfile.TemporaryDirectory(prefix="eo-proto-") as folder:
        sources, out = Path(folder, "src"), Path(folder, "out")
        for name, content in texts.items():
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ProtoError(f"imports {name!r}, which is no path below its own folder")
            path = sources / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{sources}"]
        if compiled:
            imports = descriptors.FileDescriptorSet(file=_in_order(None, compiled, {}))
            Path(folder, "known").write_bytes(imports.SerializeToString())
            command.append(f"--descriptor_set_in={Path(folder, 'known')}")
        command += [f"-I{tools / '_proto'}", *(f"-I{path}" for path in _common_protos())]
        command += ["--include_imports", f"--descriptor_set_out={out}", *texts]
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMPILE_TIMEOUT_S
        )
        if run.returncode != 0:
            message = " ".join(run.stderr.replace(f"{sources}/", "").split())
            raise ProtoError(f"cannot be compiled: {message}")
        result = descriptors.FileDescriptorSet.FromString(out.read_bytes())
    return {file.name: file for file in result.file}


def _common_protos() -> Iterator[Path]:
    """Yield the folders of the .proto files of Google and Confluent."""
    for path in library("google.type").__path__:
        yield Path(path).parents[1]


def _in_order(root: str | None, files: Mapping[str, Any], done: dict[str, Any]) -> list[Any]:
    """Return the file ``root``, or all files, each after its imports."""
    for name in [root] if root is not None else list(files):
        if name in done:
            continue
        file = files[name] if name in files else _built_in(name)
        for needed in file.dependency:
            _in_order(needed, files, done)
        done[name] = file
    return list(done.values())


def _built_in(name: str) -> Any:
    for prefix, package in _BUILT_IN.items():
        if name.startswith(prefix):
            inside = name.removeprefix(prefix).removesuffix(".proto").replace("/", ".")
            module = library(f"{package}{inside}_pb2")
            descriptors = library("google.protobuf.descriptor_pb2")
            return descriptors.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    raise ProtoError(f"imports {name}, which the registry does not name among its references")


_BUILT_IN_PREFIXES = tuple(_BUILT_IN)


def without(message: Any, names: Collection[str]) -> str:
    """Return the text of the message without some of its fields."""
    return _message_text(message, [field for field in message.fields if field.name not in names])


def only(message: Any, names: Collection[str]) -> str:
    """Return the text of the message with some of its fields, each with presence."""
    chosen = [field for field in message.fields if field.name in names]
    return _message_text(message, chosen, presence=True)


def _message_text(like: Any, fields: Sequence[Any], *, presence: bool = False) -> str:
    """Return the text of a message with ``fields``, and with the full name of ``like``. With
    ``presence`` all fields tell an absent value from the default.
    """
    descriptors = library("google.protobuf.descriptor_pb2")
    file = descriptors.FileDescriptorProto(
        name="made.proto", package=like.file.package, syntax=_syntax(like)
    )
    names: list[str] = []
    level = like
    while level is not None:
        names.insert(0, level.name)
        level = level.containing_type
    message = file.message_type.add(name=names[0])
    for name in names[1:]:
        message = message.nested_type.add(name=name)
    package = f".{file.package}" if file.package else ""
    _Copier(file).fill(message, fields, f"{package}.{'.'.join(names)}", presence=presence)
    content = b64encode(file.SerializeToString(deterministic=True)).decode()
    return json.dumps({"file": file.name, "files": {file.name: content}})


class _Copier:
    """Copies fields into messages of one ``file``."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._field = library("google.protobuf.descriptor_pb2").FieldDescriptorProto

    def fill(
        self, message: Any, fields: Sequence[Any], scope: str, *, presence: bool = False
    ) -> None:
        """Copy into the empty ``message``, whose full name is ``scope``."""
        oneofs: dict[str, int] = {}
        for field in fields:
            oneof = _oneof(field)
            if oneof and oneof not in oneofs:
                oneofs[oneof] = len(message.oneof_decl)
                message.oneof_decl.add(name=oneof)
        for field in fields:
            copy = message.field.add()
            copy.CopyFrom(_proto(field))
            copy.ClearField("oneof_index")
            self._type(copy, field, message, scope)
            if oneof := _oneof(field):
                copy.oneof_index = oneofs[oneof]
            elif copy.proto3_optional or (presence and self._lacks_presence(field)):
                self._make_optional(copy, message)

    @staticmethod
    def _lacks_presence(field: Any) -> bool:
        return not field.is_repeated and (not field.has_presence or field.is_required)

    def _make_optional(self, copy: Any, message: Any) -> None:
        copy.label = self._field.LABEL_OPTIONAL
        if self._file.syntax == "proto3":
            copy.proto3_optional = True
            copy.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{copy.name}")

    def _type(self, copy: Any, field: Any, message: Any, scope: str) -> None:
        kind = field.message_type or field.enum_type
        if kind is None:
            return
        if kind.file.name.startswith(_BUILT_IN_PREFIXES):
            if kind.file.name not in self._file.dependency:
                self._file.dependency.append(kind.file.name)
            return
        if field.enum_type is not None:
            # an enum's values are names in the scope around it: a message isolates them
            holder = message.nested_type.add(name=_free(message, f"Values{field.number}"))
            enum = holder.enum_type.add()
            kind.CopyToProto(enum)
            copy.type_name = f"{scope}.{holder.name}.{enum.name}"
            return
        is_entry = kind.GetOptions().map_entry
        inner = message.nested_type.add()
        inner.name = kind.name if is_entry else _free(message, f"Type{field.number}")
        inner.options.CopyFrom(kind.GetOptions())
        copy.type_name = f"{scope}.{inner.name}"
        if not is_entry:
            self.fill(inner, kind.fields, copy.type_name)
            return
        for part in kind.fields:  # types go beside the entry: no message may be within one
            part_copy = inner.field.add()
            part_copy.CopyFrom(_proto(part))
            self._type(part_copy, part, message, scope)


def _free(message: Any, name: str) -> str:
    taken = {member.name for member in (*message.field, *message.nested_type)}
    while name in taken:
        name += "_"
    return name


def _proto(field: Any) -> Any:
    message = library("google.protobuf.descriptor_pb2").DescriptorProto()
    field.containing_type.CopyToProto(message)
    return message.field[field.index]


def _oneof(field: Any) -> str | None:
    """Return the name of the field's oneof; None without one, or for that of an optional field."""
    oneof = field.containing_oneof
    return None if oneof is None or _proto(field).proto3_optional else str(oneof.name)


def _syntax(message: Any) -> str:
    file = library("google.protobuf.descriptor_pb2").FileDescriptorProto()
    message.file.CopyToProto(file)
    return str(file.syntax)


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

#: Names of types in a .proto file by FieldDescriptor's numbers.
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

#: Types that read a value of another type unchanged, by the written type.
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
class Protobuf(SchemaKind):
    """Protobuf schemas: of each the message named ``message``, or the first of its file."""

    message: str = ""

    def fault_of(self, text: str) -> str | None:
        try:
            message = self.descriptor(text)
        except ProtoError as error:
            return str(error)
        if message is None:
            return f"has no message {self.message}" if self.message else "has no message"
        names = [field.name for field in message.fields]
        if not names:
            return f"has the message {message.full_name} without fields: they would be the columns"
        if taken := _TAKEN.intersection(names):
            return f"has a field {min(taken)}, a name that is taken"
        for path, reason in _faults(message, (), frozenset()):
            return f"has a field {'.'.join(path)} that {reason}"
        return None

    def field_names(self, text: str) -> list[str]:
        return [field.name for field in self._message(text).fields]

    def left_out(self, writer: str, reader: str) -> list[str]:
        """Match the fields by number; the paths have the writer's names."""
        return sorted(set(self.names_left_out(writer, reader).values()))

    def names_left_out(self, writer: str, reader: str) -> dict[tuple[int, ...], str]:
        """Return the paths of :meth:`left_out` by the numbers of the fields that lead to each."""
        written, read = self.descriptor(writer), self.descriptor(reader)
        return dict(_left_out(written, read, (), ())) if written and read else {}

    def shape_of(self, text: str) -> Shape:
        """Return the columns. A writer's file may lack the message; one within itself is followed
        once.
        """
        message = self.descriptor(text)
        return _shape_of(message, frozenset()) if message else Shape(STRUCT)

    def evolve_except(self, before: str, now: str, unchanged: Collection[str]) -> str:
        """Merge two messages.

        Raises:
            ValueError: a field of either has the number of one of the other, or they are written
                in different syntaxes.
        """
        old_message, new_message = self._message(before), self._message(now)
        was = {field.name: field for field in old_message.fields}
        present = [field.name for field in new_message.fields]
        chosen = [field for field in new_message.fields if field.name not in unchanged]
        kept = [name for name in (*present, *was) if name in unchanged and name in was]
        old = [was[name] for name in dict.fromkeys(kept)]
        numbers = {field.number: field.name for field in chosen}
        for field in old:
            if field.number in numbers:
                both = f"{field.name} and {numbers[field.number]}"
                raise ValueError(f"the number {field.number} of {both}")
        if old and chosen and _syntax(old_message) != _syntax(new_message):
            raise ValueError(f"the message {new_message.full_name}, in another syntax")
        order = {name: i for i, name in enumerate(dict.fromkeys((*present, *was)))}
        fields = sorted([*chosen, *old], key=lambda field: order[field.name])
        return _message_text(new_message, fields)

    def self_contained(self, text: str, references: Mapping[str, str]) -> str:
        file = _descriptor(text)
        name = str(file.name) if file is not None and file.name else _DEFAULT_NAME
        return canonical(json.dumps({"file": name, "files": {**references, name: text}}))

    def clash(self, writer: str, reader: str) -> str | None:
        """Return the reason why ``reader`` misreads records of ``writer``; None if it does not."""
        written = self.descriptor(writer)
        if written is None:
            return None
        return next(_clashes(written, self._message(reader), ()), None)

    def castable(self, writer: str, reader: str) -> list[str]:
        """Return the columns whose bytes ``reader`` misreads, although it could hold all values."""
        read = self._message(reader).fields_by_name
        names = []
        for field in self._message(writer).fields:
            other = read.get(field.name)
            if other is None or other.number != field.number or _reads(field, other):
                continue
            was, now = (_of_field(either, frozenset()) for either in (field, other))
            if not (was.parts or now.parts) and (was == now or is_wider(now.type, was.type)):
                names.append(field.name)
        return names

    def presentable(self, text: str) -> list[str]:
        """Return the names of the fields that could be columns."""
        message = self._message(text)
        faulty = {path[0] for path, _ in _faults(message, (), frozenset())}
        return [field.name for field in message.fields if field.name not in faulty]

    def when_absent(self, text: str, name: str) -> Any:
        """Return the value of an absent scalar field."""
        field = self._message(text).fields_by_name[name]
        if field.has_presence:
            return None
        if field.enum_type is not None:
            return field.enum_type.values_by_number[field.default_value].name
        return field.default_value

    def indexes(self, text: str) -> tuple[int, ...] | None:
        """Return the index of the message in its file, after those of the enclosing messages; None
        if the file lacks it.
        """
        message, indexes = self.descriptor(text), list[int]()
        while message is not None:
            outer = message.containing_type
            siblings = outer.nested_types if outer else message.file.message_types_by_name.values()
            indexes.insert(0, list(siblings).index(message))
            message = outer
        return tuple(indexes) or None

    def descriptor(self, text: str) -> Any:
        """Return the message's descriptor; None if the file lacks it.

        Raises:
            ProtoError: the files cannot be compiled.
            SetupError: a package is not installed.
        """
        file = _schema_file(text)
        if not self.message:
            return next(iter(file.message_types_by_name.values()), None)
        inside = self.message.removeprefix(f"{file.package}.") if file.package else self.message
        first, *nested = inside.split(".")
        message = file.message_types_by_name.get(first)
        for name in nested:
            message = None if message is None else message.nested_types_by_name.get(name)
        return message

    def _message(self, text: str) -> Any:
        message = self.descriptor(text)
        assert message is not None, "text has passed fault_of"
        return message


def is_value(message: Any) -> bool:
    """Return whether the message becomes one value."""
    return message.full_name in _VALUES


def is_map(field: Any) -> bool:
    """Return whether the field is a map."""
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _inner(field: Any) -> Any:
    """Return the message whose fields become those of a struct; None for other values."""
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
                written, read = _value_message(written), _value_message(read)
            if written is not None and read is not None:
                yield from _left_out(written, read, leading, below)


def _value_message(entry: Any) -> Any:
    """Return the message of a map's values; None if they are none."""
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
            reason = f"is {was} in it, not {type_of(other)}"
            yield f"field {'.'.join(below)}, number {field.number}, {reason}"
        elif written is not None and read is not None:
            yield from _clashes(written, read, below)


def _reads(field: Any, other: Any) -> bool:
    """Return whether ``other`` reads the values of ``field`` unchanged, messages aside."""
    was, now = type_of(field), type_of(other)
    if field.is_repeated and not other.is_repeated:
        return False
    return was == now or now in _READ_AS.get(was, ())


def type_of(field: Any) -> str:
    """Return the type's name in a .proto file; the full name of a message that is one value."""
    message = field.message_type
    if message is not None and is_value(message):
        return str(message.full_name)
    if message is not None and is_map(field):
        return "map"
    return _TYPES[field.type]


#: Spark's types of scalars; the others have one name in both.
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
        return Shape(MAP, (("", _of_item(value, around)),))
    item = _of_item(field, around)
    return Shape(ARRAY, (("", item),)) if field.is_repeated else item


def _of_item(field: Any, around: frozenset[str]) -> Shape:
    message = field.message_type
    if message is not None and is_value(message):
        if message.name in ("Timestamp", "Duration"):
            return Shape("timestamp" if message.name == "Timestamp" else "bigint")
        return _of_item(message.fields_by_name["value"], around)
    if message is not None:
        return _shape_of(message, around)
    kind = _TYPES[field.type]
    if kind == "enum":
        return Shape("string", symbols=tuple(value.name for value in field.enum_type.values))
    return Shape(_SPARK.get(kind, kind))


def prefixes(indexes: Sequence[int] | None) -> list[bytes]:
    """Return all encodings of a message's indexes: their count, then the indexes. The first message
    may also be one zero, which is the usual form and comes first.
    """
    if indexes is None:
        return []
    written = b"".join(map(_varint, (len(indexes), *indexes)))
    return [b"\x00", written] if tuple(indexes) == (0,) else [written]


def messages_named(text: str, values: Iterable[bytes | None]) -> list[str]:
    """Return the names of the messages, for :class:`Protobuf`, of ``values`` in Confluent's wire
    format with an id, in the order of the schema's file.
    """
    bodies = [value[5:] for value in values if value and value[:1] == b"\x00"]
    names = []
    for name in _names(_schema_file(text).message_types_by_name.values()):
        begins = tuple(prefixes(Protobuf(name).indexes(text)))
        if any(body.startswith(begins) for body in bodies):
            names.append(name)
    return names


def _names(messages: Iterable[Any], outer: str = "") -> Iterator[str]:
    for message in messages:
        yield outer + message.name
        yield from _names(message.nested_types, f"{outer}{message.name}.")


def _varint(number: int) -> bytes:
    """Encode a number that is not negative as a zigzag varint."""
    rest, encoded = number << 1, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])
