"""Staged rows as arguments of the Lua script: a key and a packed value per row, within bounds."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from eo_pipeline.errors import RefusedError, SchemaChangeError
from eo_pipeline.sinks.arrow import bounded_batches, check_all_sent
from eo_pipeline.sinks.redis.types import KEY_KINDS, RedisKind, hash_texts, json_texts, kinds_of
from eo_pipeline.sinks.upsert import OFFSET_COLUMN, ORIGIN
from eo_pipeline.staging.rows import StagedOutput, StagedTable

if TYPE_CHECKING:
    from eo_pipeline.sinks.redis.config import RedisSink

_Texts = list[bytes | None]

#: Topic, partition and offset.
_Place = tuple[Any, Any, Any]


@dataclass
class PackedOutput:
    """Rows and dead letters as one checkpoint writes them into a table. ``columns`` are new."""

    columns: dict[str, RedisKind] = field(default_factory=dict)
    rows: dict[bytes, bytes] = field(default_factory=dict)
    #: where each of the rows came from, as :func:`origin_text` has it
    origins: list[bytes] = field(default_factory=list)
    dead_letters: list[bytes] = field(default_factory=list)


class Packer:
    """Makes the :class:`PackedOutput` of each table that one checkpoint fills. All together have no
    more rows and bytes than ``limits`` allows.
    """

    def __init__(self, limits: RedisSink) -> None:
        self._limits = limits
        self._bytes = 0

    def refuse_rows(self, outputs: Iterable[StagedOutput]) -> None:
        """Return if the tables' ``outputs`` have no more rows than one script may write.

        Raises:
            RefusedError: they have.
        """
        tables = (table for output in outputs for table in (output.rows, output.dead_letters))
        rows = sum(table.rows for table in tables if table is not None)
        if rows > self._limits.max_rows:
            raise RefusedError(
                f"the checkpoint has {rows} rows, and sink.max_rows is {self._limits.max_rows}: "
                "one script writes them all, and Redis serves nobody else meanwhile. Nothing was "
                f"written. Set source.max_records to at most {self._limits.max_rows} (less if a "
                "transform multiplies rows, or several tables take a record), or raise "
                "sink.max_rows."
            )

    def pack(
        self, sink: RedisSink, columns: Mapping[str, RedisKind], staged: StagedOutput
    ) -> PackedOutput:
        """Return all that the script needs for one table; ``columns`` are those so far.

        Raises:
            RefusedError: too much for one script, a row without a key, a value without a text.
            SchemaChangeError: a column changed its type, or has one that Redis has no form for.
        """
        output = PackedOutput()
        if staged.rows is not None:
            with _naming(sink.table_name):
                output.columns = _new_columns(sink, columns, staged.rows)
                newest = self._newest(sink, staged.rows)
            output.rows = {key: value for key, (_, value) in newest.items()}
            output.origins = [origin_text(place) for place, _ in newest.values()]
        if staged.dead_letters is not None:
            output.dead_letters = list(_letters(staged.dead_letters))
        sizes = [len(key) + len(value) for key, value in output.rows.items()]
        self._bytes += sum(sizes) + sum(map(len, output.dead_letters))
        self._refuse_bytes(self._bytes)
        return output

    def _refuse_bytes(self, size: int) -> None:
        if size > self._limits.max_bytes:
            raise RefusedError(
                f"the checkpoint's keys and values exceed sink.max_bytes "
                f"({self._limits.max_bytes}): one script writes them all, and Redis serves nobody "
                "else meanwhile. Nothing was written. Set source.max_records or source.max_bytes "
                "lower, or raise sink.max_bytes."
            )

    def _newest(self, sink: RedisSink, staged: StagedTable) -> dict[bytes, tuple[_Place, bytes]]:
        """By key; of several rows with one key the one with the greatest offset of one Kafka
        partition.
        """
        newest: dict[bytes, tuple[_Place, bytes]] = {}
        seen = size = 0
        for piece in bounded_batches(staged):
            seen += piece.num_rows
            rows = zip(_places(piece), _keys(sink, piece), _values(sink, piece), strict=True)
            for place, key, value in rows:
                before = newest.get(key)
                if before is not None and (None in place or before[0][:2] != place[:2]):
                    raise _no_order(key, before[0], place)
                if before is None or before[0] <= place:
                    newest[key] = (place, value)
                    size += len(value) - (len(before[1]) if before else -len(key))
            self._refuse_bytes(self._bytes + size)  # before the next piece is in memory too
        check_all_sent(sink.table_name, seen, staged)
        return newest


@contextmanager
def _naming(table: str) -> Iterator[None]:
    """Put the name of the ``table`` before the text of an error of the block."""
    try:
        yield
    except RefusedError as error:
        raise type(error)(f"{table}: {error}") from error


def _new_columns(
    sink: RedisSink, columns: Mapping[str, RedisKind], staged: StagedTable
) -> dict[str, RedisKind]:
    """Return the columns of ``staged`` that are not among ``columns``."""
    kinds = kinds_of(staged.schema)
    absent = [name for name in sink.template.columns if name not in kinds]
    if absent:
        raise RefusedError(f"sink.key: the rows have no column {', '.join(absent)}")
    for name in sink.template.columns:
        if kinds[name] not in KEY_KINDS:
            raise SchemaChangeError(
                f"column {name!r} is {kinds[name]}, which cannot be part of a key: one number "
                "has several texts. Nothing was written; cast it in the transform."
            )
    for name, kind in kinds.items():
        before = columns.get(name, kind)
        if kind is not before:
            raise SchemaChangeError(
                f"column {name!r} was {before} and is now {kind}. Nothing was written; cast it "
                "in the transform, or start a new pipeline."
            )
    return {name: kind for name, kind in kinds.items() if name not in columns}


def _keys(sink: RedisSink, piece: pa.RecordBatch) -> Iterator[bytes]:
    template = sink.template
    kinds = kinds_of(piece.schema)
    texts = [hash_texts(name, piece.column(name), kinds[name]) for name in template.columns]
    for parts in zip(*texts, strict=True):
        given = [part for part in parts if part is not None]
        if len(given) < len(parts):
            name = template.columns[parts.index(None)]
            raise RefusedError(
                f"column {name!r}, which is part of the key, is null in a row. Nothing was "
                "written; filter such rows in the transform or fill the column."
            )
        yield template.render(given)


def _values(sink: RedisSink, piece: pa.RecordBatch) -> Iterator[bytes]:
    return _documents(piece) if sink.store_as == "json" else _hashes(piece)


def _places(piece: pa.RecordBatch) -> Iterator[_Place]:
    """Each row's topic, partition and offset; ``None`` without lineage."""
    absent = [None] * piece.num_rows
    columns = [
        piece.column(name).to_pylist() if name in piece.schema.names else absent
        for name in (*ORIGIN, OFFSET_COLUMN)
    ]
    return zip(*columns, strict=True)


def origin_text(place: _Place) -> bytes:
    """The topic and partition that offsets can be compared in; empty if they are not known."""
    topic, partition, _ = place
    return b"" if None in (topic, partition) else f"{topic} partition {partition}".encode()


def _no_order(key: bytes, one: _Place, other: _Place) -> RefusedError:
    named = key.decode(errors="replace")
    if None not in one and None not in other:
        return RefusedError(
            f"several rows have the key {named!r}, and nothing tells which is the newer one: one "
            f"came from {one[0]} partition {one[1]}, another from {other[0]} partition {other[1]}, "
            "and offsets of different partitions cannot be compared (were partitions added, so "
            "that keys moved?). Nothing was written; leave one row a key in the transform."
        )
    return RefusedError(
        f"several rows have the key {named!r}, and nothing tells which is "
        "the newer one. Nothing was written; keep the pipeline's lineage on (_eo_offset then "
        "tells), or leave one row a key in the transform."
    )


def _hashes(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Each row as a packed list of field, value, field, value; nulls left out."""
    names = [packed_text(name.encode()) for name in batch.schema.names]
    columns = _columns(batch)
    for row in zip(*columns, strict=True):
        pairs = [
            name + packed_text(value)
            for name, value in zip(names, row, strict=True)
            if value is not None
        ]
        yield packed_list(pairs, 2 * len(pairs))


def _columns(batch: pa.RecordBatch) -> list[_Texts]:
    kinds = kinds_of(batch.schema)
    return [hash_texts(name, batch.column(name), kind) for name, kind in kinds.items()]


def _documents(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Each row as one JSON object."""
    names = [json.dumps(name, ensure_ascii=False) for name in batch.schema.names]
    columns = [json_texts(name, batch.column(name)) for name in batch.schema.names]
    for row in zip(*columns, strict=True):
        pairs = (f"{name}:{text or 'null'}" for name, text in zip(names, row, strict=True))
        yield f"{{{','.join(pairs)}}}".encode()


def _letters(staged: StagedTable) -> Iterator[bytes]:
    """Each dead letter as fields and values of a stream entry."""
    seen = 0
    for piece in bounded_batches(staged):
        seen += piece.num_rows
        names = [name.encode() for name in piece.schema.names]
        for row in zip(*_columns(piece), strict=True):
            pairs = [(n, v) for n, v in zip(names, row, strict=True) if v is not None]
            yield packed([text for pair in pairs for text in pair])
    check_all_sent("dead letters", seen, staged)


def packed(values: Sequence[bytes]) -> bytes:
    """A list of byte strings in MessagePack, which scripts can read (``cmsgpack``)."""
    return packed_list(map(packed_text, values), len(values))


def packed_list(texts: Iterable[bytes], count: int) -> bytes:
    """``count`` packed texts as one packed list."""
    return struct.pack(">BI", 0xDD, count) + b"".join(texts)


def packed_text(value: bytes) -> bytes:
    """One element: a length and the bytes."""
    return struct.pack(">BI", 0xDB, len(value)) + value
