"""What somebody else sees in Redis: another client, one atomic look, no engine code but types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pytest
import redis

from eo_pipeline.ledger.entry import LedgerEntry
from eo_pipeline.sinks.redis import RedisSink
from eo_pipeline.sinks.redis.types import RedisKind, from_hash, from_json
from eo_pipeline.sinks.session import CommitOutcome, SinkSession
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.testing import child_of, first_entry

COMMITTED = CommitOutcome.COMMITTED

#: Of each table the schema and the rows, all in one snapshot: nothing runs while a script does.
_LOOK = """
local tables = {}
for i, schema in ipairs(KEYS) do
  local rows = {}
  for _, key in ipairs(redis.call('KEYS', ARGV[i])) do
    local kind = redis.call('TYPE', key).ok
    rows[#rows + 1] = redis.call(kind == 'hash' and 'HGETALL' or 'GET', key)
  end
  tables[i] = {redis.call('HGETALL', schema), rows}
end
return tables
"""


def client_of(sink: RedisSink) -> redis.Redis:
    return redis.Redis.from_url(sink.url.get_secret_value(), protocol=2)


def rows_in(sink: RedisSink, pipeline: str) -> list[dict[str, Any]]:
    """Every row, as Python values."""
    tag = f"{{{pipeline}}}"
    with client_of(sink) as client:
        [(schema, rows)] = client.eval(_LOOK, 1, f"{tag}:eo_schema", f"{tag}:{sink.prefix}:*")
    return _decoded(schema, rows, sink.store_as)


def tables_in(url: str, pipeline: str, forms: Mapping[str, str]) -> dict[str, list[dict[str, Any]]]:
    """Every row of several tables, whose names have these ``forms``, in one look."""
    tag = f"{{{pipeline}}}"
    schemas = [f"{tag}:eo_schema:{name}" for name in forms]
    patterns = [f"{tag}:{name}:*" for name in forms]
    with redis.Redis.from_url(url, protocol=2) as client:
        tables = client.eval(_LOOK, len(forms), *schemas, *patterns)
    return {
        name: _decoded(schema, rows, form)
        for (name, form), (schema, rows) in zip(forms.items(), tables, strict=True)
    }


def _decoded(schema: list[bytes], rows: list[Any], form: str) -> list[dict[str, Any]]:
    kinds = {name.decode(): RedisKind(kind.decode()) for name, kind in _pairs(schema).items()}
    if form == "json":
        return [from_json(row, kinds) for row in rows]
    return [from_hash(_pairs(row), kinds) for row in rows]


def dead_letters_in(sink: RedisSink, pipeline: str) -> list[dict[str, Any]]:
    """Entries of the stream; numbers and texts as such."""
    with client_of(sink) as client:
        entries: Any = client.xrange(f"{{{pipeline}}}:eo_dead_letters")
    return [
        {"offset": int(e[b"offset"]), "value": e[b"value"], "error": e[b"error"].decode()}
        for _, e in entries
    ]


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[0::2], flat[1::2], strict=True))


def sink_at(url: str, **settings: Any) -> RedisSink:
    return RedisSink.model_validate({"url": url, "key": ["id"], **settings})


def command(client: redis.Redis, *words: str | int) -> Any:
    """Any command, also those the client has no method for."""
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


def rows(**columns: Any) -> StagedOutput:
    return StagedOutput(rows=StagedTable.in_memory(pa.table(columns)))


def started(session: SinkSession) -> LedgerEntry:
    """The start entry, published."""
    start = first_entry("p")
    assert session.publish(start, StagedOutput()) is COMMITTED
    return start


def publish(sink: RedisSink, *batches: StagedOutput) -> LedgerEntry:
    """Each batch as one more checkpoint of the pipeline ``p``."""
    with sink.open("p") as session:
        head = session.head() or started(session)
        for batch in batches:
            head = child_of(head, batch)
            assert session.publish(head, batch) is COMMITTED
        return head


def ids(sink: RedisSink) -> list[int]:
    return sorted(row["id"] for row in rows_in(sink, "p"))


@pytest.fixture
def sink(redis_url: str) -> RedisSink:
    return sink_at(redis_url)


@pytest.fixture
def observer(sink: RedisSink) -> Iterator[redis.Redis]:
    with client_of(sink) as client:
        yield client
