"""Protobuf messages made of others: some fields of one, some of another, as texts.

All types that they need are copied into the message, so that two columns may have one type in two
forms. Types of Google's and Confluent's own files are left where they are.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Collection, Sequence
from typing import Any

from eo_pipeline.source.optional import library

#: Files that no text holds.
_BUILT_IN = ("google/", "confluent/")


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
        if kind.file.name.startswith(_BUILT_IN):
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
