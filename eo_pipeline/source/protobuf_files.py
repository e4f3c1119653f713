"""Protobuf schemas as texts, and the descriptors compiled from them.

A text is JSON: ``{"file": name, "files": {name: content}}``, the schema's own file and all that it
imports but for Google's and Confluent's. A content is what a registry has: a .proto file, or a
serialized FileDescriptorProto in base64, as confluent-kafka registers it.
"""

from __future__ import annotations

import base64
import binascii
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.schemas import canonical
from eo_pipeline.source.optional import library

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
