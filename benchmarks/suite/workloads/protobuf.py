"""Protobuf behind a schema registry."""

from __future__ import annotations

from functools import cache
from typing import Any

import polars as pl
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from benchmarks.suite.records import COLUMNS
from benchmarks.suite.workloads.plain import POSTGRES_SCHEMA
from benchmarks.suite.workloads.registered import PROTOBUF, PROTOBUF_SUBJECT, prefix
from benchmarks.suite.workloads.workload import REGISTRY, Workload

#: The first message of the file.
_MESSAGE = b"\0"
_TYPES = {pl.Int64(): "INT64", pl.Float64(): "DOUBLE", pl.String(): "STRING"}


@cache
def _message() -> Any:
    """The class of the registered message."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="record.proto", syntax="proto3")
    record = file.message_type.add(name="Record")
    for place, (name, kind) in enumerate(COLUMNS.items(), 1):
        field = record.field.add(name=name, number=place, label=kinds.LABEL_OPTIONAL)
        field.type = kinds.Type.Value(f"TYPE_{_TYPES[kind]}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("Record"))


def _values(frame: pl.DataFrame) -> list[bytes]:
    make, before = _message(), prefix(PROTOBUF) + _MESSAGE
    return [before + make(**row).SerializeToString() for row in frame.iter_rows(named=True)]


PROTOBUF_RECORDS = Workload(
    key="protobuf",
    title="Protobuf by a schema of a registry, 8 partitions",
    text=(
        "For eo-pipeline alone: this Flink has no format for Protobuf behind a registry, and "
        "`spark-protobuf` is not among the jars that the suite can download."
    ),
    columns=COLUMNS,
    postgres=POSTGRES_SCHEMA,
    topic="protobuf",
    values=_values,
    source={
        "value_format": "protobuf",
        "registry": {"url": REGISTRY, "subject": PROTOBUF_SUBJECT},
    },
)
