"""One job that every peer does in its own words, and the rows that it has to leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import polars as pl

from benchmarks.suite.jars import Jar
from benchmarks.suite.records import RECORD_BYTES
from benchmarks.suite.stores import Store

EVERYWHERE = (Store.DELTA, Store.POSTGRES, Store.KAFKA)
#: Stands in jobs and documents for the registry's URL.
REGISTRY = "{registry}"
_JSON: Mapping[str, str] = {"format": "json"}


@dataclass(frozen=True)
class FlinkJob:
    """A job in Flink's SQL, from the table ``records`` into the table ``output``."""

    columns: str
    output: str
    query: str = "SELECT * FROM records"
    #: further statements, before the job
    views: Sequence[str] = ()
    #: how the source's records are read
    source: Mapping[str, str] = field(default_factory=lambda: _JSON)
    settings: Mapping[str, str] = field(default_factory=dict)
    #: what its format needs beside the connectors
    jars: Sequence[Jar] = ()
    partition_by: str = ""
    stores: Sequence[Store] = (Store.PARQUET, Store.POSTGRES, Store.KAFKA)


@dataclass(frozen=True)
class StreamingQuery:
    """A query in Spark's SQL over the stream ``kafka``, whose columns are Spark's own."""

    query: str
    #: further views, by name
    views: Mapping[str, str] = field(default_factory=dict)
    jars: Sequence[Jar] = ()
    partition_by: str = ""
    #: another query for PostgreSQL, which may give JSON as text
    into_database: str = ""
    #: rows replace each other by this column; the query has the column ``offset`` too
    key: str = ""
    stores: Sequence[Store] = EVERYWHERE


def as_json(frame: pl.DataFrame) -> list[bytes]:
    """Return each row as a JSON object."""
    return frame.write_ndjson().encode().split(b"\n")[:-1]


def same(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the frame."""
    return frame


@dataclass(frozen=True)
class Workload:
    """A topic's records, the rows that each peer has to make of them, and how each peer does so.

    ``columns`` are the output's, with the types in which outputs are compared; ``id`` is among
    them. The name of the scenarios begins with ``key``.
    """

    key: str
    title: str
    #: for the page
    text: str
    columns: Mapping[str, pl.DataType]
    #: the table in PostgreSQL
    postgres: str
    #: the value of a record as it lies in the topic
    values: Callable[[pl.DataFrame], list[bytes]]
    #: eo-pipeline's document: the source's fields, the transform, the sink's fields
    source: Mapping[str, Any]
    transform: str | None = None
    sink: Mapping[str, Any] = field(default_factory=dict)
    flink: FlinkJob | None = None
    streaming: StreamingQuery | None = None
    #: whether dlt and the hand-written loader do this too
    by_dlt: bool = False
    by_hand: bool = False
    #: names topics; workloads of one name share theirs
    topic: str = ""
    #: bytes of a record, about: a topic of longer records has fewer
    record_bytes: int = RECORD_BYTES
    #: what the topic holds, of the plain records; a row for each record
    records: Callable[[pl.DataFrame], pl.DataFrame] = same
    keys: Callable[[pl.DataFrame], list[bytes]] | None = None
    #: the output's rows, of what the topic holds
    rows: Callable[[pl.DataFrame], pl.DataFrame] = same
    #: how many of so many records are no row, but a dead letter
    bad: Callable[[int], int] | None = None
    #: the value's bytes are stored in a column ``value``
    raw: bool = False
    #: the column by which files lie in folders
    partition_by: str = ""
    #: lake tables lie in a bucket
    in_bucket: bool = False
    #: where it is measured
    stores: Sequence[Store] = EVERYWHERE

    def records_of(self, plain: int) -> int:
        """Return the number of records with as many bytes as ``plain`` ones."""
        return plain * RECORD_BYTES // self.record_bytes
