"""Protobuf schemas as texts: compilation, conversion to columns, and differences between schemas.

A text is JSON: ``{"file": name, "files": {name: content}}``, the schema's own file and all its
imports except those of Google and Confluent. A content is the form in which a registry returns it:
a .proto file, or a serialized FileDescriptorProto in base64, as confluent-kafka registers it.
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

#: The name of a file that nobody named.
_OWN = "schema.proto"

#: Files that every reader of Protobuf has: their modules are installed with the libraries.
_BUILT_IN = {
    "google/": "google.",
    "confluent/": "confluent_kafka.schema_registry.confluent.",
}

_COMPILE_TIMEOUT_S = 60

#: Messages that ptars takes for one value and changes on the way: a date without a day has one.
_PLAIN = "google.type"


class ProtoError(ConfigError):
    """The text says what is wrong with a schema."""


def self_contained(text: str, references: Mapping[str, str]) -> str:
    """One text of the schema's own file and those that it imports, by name."""
    own = _descriptor(text)
    name = str(own.name) if own is not None and own.name else _OWN
    return canonical(json.dumps({"file": name, "files": {**references, name: text}}))


@lru_cache(maxsize=64)
def files_of(text: str) -> tuple[bytes, ...]:
    """The serialized FileDescriptorProtos, what is imported before what imports it; the last one is
    the schema's own.

    Raises:
        ProtoError: it cannot be compiled.
        SetupError: a package is not installed.
    """
    whole = json.loads(text)
    files: dict[str, Any] = {}
    texts: dict[str, str] = {}
    for name, content in whole["files"].items():
        found = _descriptor(content)
        if found is None:
            texts[name] = content
        else:
            found.name = name
            files[name] = found
    if texts:
        files |= _compiled(texts, files)
    return tuple(each.SerializeToString() for each in _in_order(whole["file"], files, {}))


@lru_cache(maxsize=64)
def pool_of(text: str) -> Any:
    """A ``DescriptorPool`` of :func:`files_of`.

    Raises:
        ProtoError: the files do not fit together.
        SetupError: a package is not installed.
    """
    pool = library("google.protobuf.descriptor_pool").DescriptorPool()
    for each in files_of(text):
        try:
            pool.AddSerializedFile(each)
        except TypeError as error:
            raise ProtoError(f"does not fit together: {error}") from error
    return pool


@lru_cache(maxsize=64)
def plain_files(text: str) -> tuple[bytes, ...]:
    """:func:`files_of` with other names for the messages of :data:`_PLAIN`, so that they are
    messages as any.
    """
    return tuple(map(_renamed, files_of(text)))


def _renamed(file: bytes) -> bytes:
    found = library("google.protobuf.descriptor_pb2").FileDescriptorProto.FromString(file)
    if found.package == _PLAIN:
        found.package = f"eo.{_PLAIN}"
    messages: list[Any] = [*found.message_type]
    while messages:
        message = messages.pop()
        messages.extend(message.nested_type)
        for field in message.field:
            if field.type_name.startswith(f".{_PLAIN}."):
                field.type_name = f".eo{field.type_name}"
    return bytes(found.SerializeToString())


def own_file(text: str) -> Any:
    """The descriptor of the schema's own file."""
    return pool_of(text).FindFileByName(json.loads(text)["file"])


def _descriptor(content: str) -> Any:
    """The FileDescriptorProto that ``content`` is in base64; None if it is a .proto file."""
    try:
        serialized = base64.b64decode(content.strip(), validate=True)
    except (binascii.Error, ValueError):
        return None
    library("google.protobuf.message")
    found = library("google.protobuf.descriptor_pb2").FileDescriptorProto()
    try:
        found.ParseFromString(serialized)
    except library("google.protobuf.message").DecodeError:
        return None
    return found


def _compiled(texts: Mapping[str, str], known: Mapping[str, Any]) -> dict[str, Any]:
    """By protoc; ``known`` are files that have been compiled already."""
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
        if known:
            given = descriptors.FileDescriptorSet(file=_in_order(None, known, {}))
            Path(folder, "known").write_bytes(given.SerializeToString())
            command.append(f"--descriptor_set_in={Path(folder, 'known')}")
        command += [f"-I{tools / '_proto'}", *(f"-I{each}" for each in _common_protos())]
        command += ["--include_imports", f"--descriptor_set_out={out}", *texts]
        run = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_COMPILE_TIMEOUT_S
        )
        if run.returncode != 0:
            said = " ".join(run.stderr.replace(f"{sources}/", "").split())
            raise ProtoError(f"cannot be compiled: {said}")
        compiled = descriptors.FileDescriptorSet.FromString(out.read_bytes())
    return {each.name: each for each in compiled.file}


def _common_protos() -> Iterator[Path]:
    """Where Google's and Confluent's own .proto files are installed."""
    for path in library("google.type").__path__:
        yield Path(path).parents[1]


def _in_order(own: str | None, files: Mapping[str, Any], done: dict[str, Any]) -> list[Any]:
    """``own``, or all there are, after what they import."""
    for name in [own] if own is not None else list(files):
        if name in done:
            continue
        found = files[name] if name in files else _built_in(name)
        for needed in found.dependency:
            _in_order(needed, files, done)
        done[name] = found
    return list(done.values())


def _built_in(name: str) -> Any:
    for prefix, package in _BUILT_IN.items():
        if name.startswith(prefix):
            inside = name.removeprefix(prefix).removesuffix(".proto").replace("/", ".")
            module = library(f"{package}{inside}_pb2")
            descriptors = library("google.protobuf.descriptor_pb2")
            return descriptors.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
    raise ProtoError(f"imports {name}, which the registry does not name among its references")


#: Files that no text holds.
_BUILT_IN_PREFIXES = ("google/", "confluent/")


def partly(before: Any, now: Any, as_before: Collection[str]) -> str:
    """The message ``now``, but that the fields ``as_before`` are what they are in ``before``, or
    are not there if they were not; both are descriptors.

    Raises:
        ValueError: a field of either has the number of one of the other, or they are written in
            another syntax.
    """
    was = {field.name: field for field in before.fields}
    present = [field.name for field in now.fields]
    chosen = [field for field in now.fields if field.name not in as_before]
    kept = [name for name in (*present, *was) if name in as_before and name in was]
    old = [was[name] for name in dict.fromkeys(kept)]
    numbers = {field.number: field.name for field in chosen}
    for field in old:
        if field.number in numbers:
            both = f"{field.name} and {numbers[field.number]}"
            raise ValueError(f"the number {field.number} of {both}")
    if old and chosen and _syntax(before) != _syntax(now):
        raise ValueError(f"the message {now.full_name}, in another syntax")
    names = {name: n for n, name in enumerate(dict.fromkeys((*present, *was)))}
    return made(now, sorted([*chosen, *old], key=lambda field: names[field.name]))


def without(message: Any, names: Collection[str]) -> str:
    """The message of that descriptor without some of its fields."""
    return made(message, [field for field in message.fields if field.name not in names])


def only(message: Any, names: Collection[str]) -> str:
    """Some of its fields, of which each tells whether it is there."""
    chosen = [field for field in message.fields if field.name in names]
    return made(message, chosen, told=True)


def made(like: Any, fields: Sequence[Any], *, told: bool = False) -> str:
    """A text with a message of that name and place, with these ``fields``; each tells whether it is
    there, if that is to be ``told``.
    """
    descriptors = library("google.protobuf.descriptor_pb2")
    file = descriptors.FileDescriptorProto(
        name="made.proto", package=like.file.package, syntax=_syntax(like)
    )
    around: list[str] = []
    each = like
    while each is not None:
        around.insert(0, each.name)
        each = each.containing_type
    message = file.message_type.add(name=around[0])
    for name in around[1:]:
        message = message.nested_type.add(name=name)
    package = f".{file.package}" if file.package else ""
    _Copying(file).fill(message, fields, f"{package}.{'.'.join(around)}", told=told)
    content = b64encode(file.SerializeToString(deterministic=True)).decode()
    return json.dumps({"file": file.name, "files": {file.name: content}})


class _Copying:
    """Puts copies of fields into messages of one ``file``."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._field = library("google.protobuf.descriptor_pb2").FieldDescriptorProto

    def fill(self, message: Any, fields: Sequence[Any], scope: str, *, told: bool = False) -> None:
        """Into the empty ``message``, whose full name is ``scope``."""
        oneofs: dict[str, int] = {}
        for field in fields:
            one = _oneof(field)
            if one and one not in oneofs:
                oneofs[one] = len(message.oneof_decl)
                message.oneof_decl.add(name=one)
        for field in fields:
            copy = message.field.add()
            copy.CopyFrom(_proto(field))
            copy.ClearField("oneof_index")
            self._type(copy, field, message, scope)
            if one := _oneof(field):
                copy.oneof_index = oneofs[one]
            elif copy.proto3_optional or (told and self._says_nothing(field)):
                self._tell(copy, message)

    def _says_nothing(self, field: Any) -> bool:
        """Whether it is not known if it is there."""
        return not field.is_repeated and (not field.has_presence or field.is_required)

    def _tell(self, copy: Any, message: Any) -> None:
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
            # its values are names beside it: it stands in a message of its own
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
        for each in kind.fields:  # the value's type stands beside the entry, which holds none
            part = inner.field.add()
            part.CopyFrom(_proto(each))
            self._type(part, each, message, scope)


def _free(message: Any, name: str) -> str:
    taken = {each.name for each in (*message.field, *message.nested_type)}
    while name in taken:
        name += "_"
    return name


def _proto(field: Any) -> Any:
    whole = library("google.protobuf.descriptor_pb2").DescriptorProto()
    field.containing_type.CopyToProto(whole)
    return whole.field[field.index]


def _oneof(field: Any) -> str | None:
    """The name of a oneof that somebody wrote."""
    found = field.containing_oneof
    return None if found is None or _proto(field).proto3_optional else str(found.name)


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
class Protobuf(SchemaKind):
    """One message of each schema: that of the name ``message``, or the first of its file."""

    message: str = ""

    def fault_of(self, text: str) -> str | None:
        """See :class:`eo_pipeline.formats.kinds.SchemaKind`."""
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
        """See :class:`eo_pipeline.formats.kinds.SchemaKind`."""
        return [field.name for field in self._found(text).fields]

    def left_out(self, writer: str, reader: str) -> list[str]:
        """The same; fields are told by their numbers, and named as the writer names them."""
        return sorted(set(self.names_left_out(writer, reader).values()))

    def names_left_out(self, writer: str, reader: str) -> dict[tuple[int, ...], str]:
        """The same paths, by the numbers of the fields that lead to each."""
        written, read = self.descriptor(writer), self.descriptor(reader)
        return dict(_left_out(written, read, (), ())) if written and read else {}

    def shape_of(self, text: str) -> Shape:
        """See :class:`eo_pipeline.formats.kinds.SchemaKind`. A writer's file may not have the
        message, or one that is within itself, which is looked into once.
        """
        found = self.descriptor(text)
        return _shape_of(found, frozenset()) if found else Shape(STRUCT)

    def partly(self, before: str, now: str, as_before: Collection[str]) -> str:
        """See :class:`eo_pipeline.formats.kinds.SchemaKind`."""
        return partly(self._found(before), self._found(now), as_before)

    def self_contained(self, text: str, references: Mapping[str, str]) -> str:
        """See :class:`eo_pipeline.formats.kinds.SchemaKind`."""
        return self_contained(text, references)

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
