"""Staged rows as the arguments of ``produce``: value, key, partition, timestamp, headers.

Rows come projected (:mod:`eo_pipeline.sinks.kafka.types`), with key and value made by Spark, or
plain, as whoever stages without Spark has them; then they are made here, row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import Any, NamedTuple

from eo_pipeline.arrow import pa, pc
from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.arrow import json_array, refusing
from eo_pipeline.sinks.kafka.assigner import start_index
from eo_pipeline.sinks.kafka.producer import Arguments
from eo_pipeline.sinks.kafka.types import (
    HEADERS,
    KEY,
    LINEAGE_COLUMNS,
    SOURCE_PARTITION,
    SOURCE_TOPIC,
    TIMESTAMP,
    VALUE,
    Layout,
    Partitioner,
    is_projected,
)
from eo_pipeline.staging.rows import StagedTable

#: librdkafka's "let the partitioner decide".
_ANY_PARTITION = -1

#: ... and its "now"; what lies before means "none" to it, or is nothing a broker takes.
_NOW = 0

_Headers = list[tuple[str, bytes | None]]


class Share(NamedTuple):
    """Rows of one batch that one shard publishes."""

    shard: int
    rows: int
    records: Iterator[Arguments]


def shares(
    staged: StagedTable,
    layout: Layout,
    partitions: int,
    shards: int,
    wanted: Collection[int] | None = None,
) -> Iterator[Share]:
    """The rows of ``staged`` for a topic with that many ``partitions``, dealt out to ``shards``
    by the Kafka partition they came from; only those of the ``wanted`` shards.

    The same rows always belong to the same shards, whoever asks.

    Raises:
        RefusedError: a row has no place in the topic.
        SchemaChangeError: a column the layout goes by is absent or of another type.
    """
    layout.check_arrow(staged.schema)
    for batch in staged.batches():
        for shard, part in _dealt_out(_projected(batch, layout), shards):
            if wanted is None or shard in wanted:
                yield Share(shard, len(part), _arguments(part, layout, partitions))


def _dealt_out(batch: pa.RecordBatch, shards: int) -> Iterator[tuple[int, pa.RecordBatch]]:
    if shards == 1:
        yield 0, batch
        return
    assigned = assign_all(batch.column(SOURCE_TOPIC), batch.column(SOURCE_PARTITION), shards)
    for shard in sorted(pc.unique(assigned).to_pylist()):
        yield shard, batch.filter(pc.equal(assigned, shard))


def assign_all(topics: pa.Array, partitions: pa.Array, count: int) -> pa.Array:
    """:func:`~.assigner.assign` for columns; a row without an origin goes to 0."""
    named = topics.dictionary_encode()
    starts = [None if t is None else start_index(t, count) for t in named.dictionary.to_pylist()]
    first = pa.array(starts, pa.int64()).take(named.indices)
    turn = pc.add(first, pc.cast(partitions, pa.int64()))
    return pc.fill_null(pc.subtract(turn, pc.multiply(pc.divide(turn, count), count)), 0)


def dead_letters(staged: StagedTable) -> Iterator[Arguments]:
    """Records that could not be read, as they came; the error and where they stood as headers."""
    for batch in staged.batches():
        for row in batch.to_pylist():
            headers = [(header["key"], header["value"]) for header in row["headers"] or ()]
            stamp = None if row["timestamp"] is None else _milliseconds_of(row["timestamp"])
            added = {
                CHECKPOINT_COLUMN: row[CHECKPOINT_COLUMN],
                **{f"_eo_{name}": row[name] for name in ("topic", "partition", "offset", "error")},
                "_eo_timestamp": stamp,
            }
            headers += [(name, str(value).encode()) for name, value in added.items()]
            # a time that no record can carry is in the header alone
            carried = stamp if stamp is not None and stamp > _NOW else _NOW
            yield row["value"], row["key"], _ANY_PARTITION, None, None, carried, headers


def _arguments(batch: pa.RecordBatch, layout: Layout, partitions: int) -> Iterator[Arguments]:
    count = len(batch)
    columns: list[Iterable[Any]] = [
        _bytes(batch.column(VALUE)),
        _optional(batch, KEY, _bytes) or repeat(None, count),
        _targets(batch, layout, partitions),
    ]
    stamps = _optional(batch, TIMESTAMP, _milliseconds)
    headers = _headers(batch, layout)
    if stamps is not None or headers is not None:  # two callbacks come first in produce()
        columns += [repeat(None, count), repeat(None, count), stamps or repeat(0, count)]
    if headers is not None:
        columns.append(headers)
    return zip(*columns, strict=True)


def _projected(batch: pa.RecordBatch, layout: Layout) -> pa.RecordBatch:
    """What Spark's projection would have made of plain columns."""
    if is_projected(batch.schema.names):
        return batch
    columns = {name: batch.column(name) for name in batch.schema.names if name in LINEAGE_COLUMNS}
    if layout.value is not None:
        columns[VALUE] = batch.column(layout.value)
    else:
        columns[VALUE] = _documents(batch, layout.payload(batch.schema.names))
    if layout.key is not None:
        columns[KEY] = batch.column(layout.key)
    if layout.timestamp is not None:
        columns[TIMESTAMP] = batch.column(layout.timestamp)
    if isinstance(layout.headers, str):
        columns[HEADERS] = batch.column(layout.headers)
    elif layout.headers:
        columns[HEADERS] = _header_array(batch, layout.headers)
    return pa.RecordBatch.from_pydict(columns)


def _documents(batch: pa.RecordBatch, names: list[str]) -> pa.Array:
    """Each row as one JSON object. If one has no text, the column is named that it has not of."""
    try:
        return _objects(batch, names)
    except (ValueError, OverflowError):
        for name in names:
            with refusing(name, "Kafka"):
                _objects(batch, [name])
        raise


def _objects(batch: pa.RecordBatch, names: list[str]) -> pa.Array:
    return json_array(pa.StructArray.from_arrays([batch.column(name) for name in names], names))


def _header_array(batch: pa.RecordBatch, names: Any) -> pa.Array:
    values = [_bytes(batch.column(column)) for column in names.values()]
    rows = [
        [{"key": name, "value": value} for name, value in zip(names, row, strict=True)]
        for row in zip(*values, strict=True)
    ]
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    return pa.array(rows, pa.list_(header))


def _optional(
    batch: pa.RecordBatch, name: str, convert: Callable[[pa.Array], list[Any]]
) -> list[Any] | None:
    return convert(batch.column(name)) if name in batch.schema.names else None


def _bytes(values: pa.Array) -> list[bytes | None]:
    if pa.types.is_integer(values.type):
        values = pc.cast(values, pa.string())
    found: list[bytes | None] = pc.cast(values, pa.binary()).to_pylist()
    return found


def _milliseconds(values: pa.Array) -> list[int]:
    """:data:`_NOW` where there is no timestamp.

    Raises:
        RefusedError: a timestamp that no record can carry.
    """
    millis = pc.cast(pc.cast(values, pa.timestamp("ms", values.type.tz), safe=False), pa.int64())
    first = pc.min(millis).as_py()
    if first is not None and first <= _NOW:
        moment = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=first)
        raise RefusedError(
            f"sink.timestamp: a Kafka record cannot carry {moment.isoformat()}, only times after "
            "1970-01-01T00:00:00Z: the client would stamp it with the time of publishing. Nothing "
            "was published; make it null in the transform if that is what you want."
        )
    found: list[int] = pc.fill_null(millis, _NOW).to_pylist()
    return found


def _milliseconds_of(moment: datetime) -> int:
    return (moment - datetime.fromtimestamp(0, moment.tzinfo)) // timedelta(milliseconds=1)


def _headers(batch: pa.RecordBatch, layout: Layout) -> list[_Headers] | None:
    """The headers of every row; where the value has no room for the lineage, it is in them."""
    given = batch.column(HEADERS).to_pylist() if HEADERS in batch.schema.names else None
    added = [name for name in batch.schema.names if name in LINEAGE_COLUMNS]
    added = added if layout.lineage_in_headers else []
    if given is None and not added:
        return None
    rows = [[(h["key"], h["value"]) for h in row or ()] for row in given or repeat((), len(batch))]
    lineage = [_bytes(batch.column(name)) for name in added]
    if not lineage:
        return rows
    return [
        [*row, *zip(added, values, strict=True)]
        for row, values in zip(rows, zip(*lineage, strict=True), strict=True)
    ]


def _targets(
    batch: pa.RecordBatch, layout: Layout, partitions: int
) -> Iterator[int] | Sequence[int]:
    if layout.partitioning is Partitioner.KEY:
        return repeat(_ANY_PARTITION, len(batch))
    origins = batch.column(SOURCE_PARTITION)
    if layout.partitioning is Partitioner.SOURCE:
        sources: list[int] = origins.to_pylist()
        _refuse_too_few(sources, partitions)
        return sources
    targets: list[int] = assign_all(batch.column(SOURCE_TOPIC), origins, partitions).to_pylist()
    return targets


def _refuse_too_few(sources: Sequence[int], partitions: int) -> None:
    highest = max(sources, default=-1)
    if highest >= partitions:
        raise RefusedError(
            f"sink.partitioning: source keeps Kafka partition {highest}, and the topic has "
            f"{partitions} partitions. Nothing was published. Give the topic more partitions."
        )
