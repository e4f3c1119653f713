"""One pipeline's connection to Redis, its session, and the publication of an entry."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from eo_pipeline.errors import (
    ConfigError,
    EoPipelineError,
    FencedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import START_VERSION, EntryId, LedgerEntry
from eo_pipeline.sinks.redis.config import TARGET, RedisSink
from eo_pipeline.sinks.redis.keys import Keys
from eo_pipeline.sinks.redis.rows import PackedOutput, Packer, packed
from eo_pipeline.sinks.redis.types import RedisKind
from eo_pipeline.sinks.session import Publication, SinkSession
from eo_pipeline.staging.rows import StagedOutput

#: ``KEYS``: ledger, then for each table schema, dead letters and one a row. ``ARGV``: version,
#: transaction id, parent, entry, a packed list of targets (field of the ledger, value); then for
#: each table number of rows, number of dead letters, form, time to live, new columns, a packed list
#: of where each row came from (its Kafka topic and partition, or nothing), a packed list of fields
#: and values for each dead letter, and for each row one (hash) or its text (json).
PUBLISH = """
local ledger = KEYS[1]
local version, transaction, parent, entry = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local tables = {}
local next_key, next_argument = 2, 6
while next_key <= #KEYS do
  local rows, letters = tonumber(ARGV[next_argument]), tonumber(ARGV[next_argument + 1])
  local first_letter = next_argument + 6
  tables[#tables + 1] = {
    schema = KEYS[next_key], letters = KEYS[next_key + 1],
    first_key = next_key + 2, rows = rows,
    form = ARGV[next_argument + 2], ttl = ARGV[next_argument + 3],
    columns = ARGV[next_argument + 4], origins = cmsgpack.unpack(ARGV[next_argument + 5]),
    first_letter = first_letter, letter_count = letters, first_value = first_letter + letters,
  }
  next_key, next_argument = next_key + 2 + rows, first_letter + letters + rows
end

-- 1. look: this very entry, another one, or a head that is not the parent
local held = redis.call('HGET', ledger, version)
if held then
  local id = cjson.decode(held).entry.transaction_id
  return {id == transaction and 'already committed' or 'fenced', id}
end
if (redis.call('HGET', ledger, 'head') or '') ~= parent then
  return {'fenced', ''}
end

-- 2. try: every type and every permission of every table, before the first write
local function denied(command, key, ...)
  return not redis.acl_check_cmd(command, key, ...) and {'denied', command, key}
end
local function misfit(key, wanted)
  local found = redis.call('TYPE', key).ok
  return found ~= 'none' and found ~= wanted and {'wrong type', key, found}
end
local function obstacle(key, form, ttl)
  if form == 'json' then
    return misfit(key, 'string') or denied('SET', key, 'v', 'PX', '1') or denied('GET', key)
  end
  return misfit(key, 'hash') or denied('DEL', key) or denied('HSET', key, 'f', 'v')
    or denied('HMGET', key, 'f') or (ttl ~= '' and denied('PEXPIRE', key, '1'))
end
-- offsets of different partitions say nothing of which row is the newer one
local function moved(key, form, origin)
  if origin == '' then return false end
  local topic, partition
  if form == 'json' then
    local ok, document = pcall(cjson.decode, redis.call('GET', key) or '{}')
    if ok and type(document) == 'table' then
      topic, partition = document['_eo_topic'], document['_eo_partition']
    end
    if type(partition) == 'number' then partition = string.format('%d', partition) end
  else
    local held = redis.call('HMGET', key, '_eo_topic', '_eo_partition')
    topic, partition = held[1], held[2]
  end
  if type(topic) ~= 'string' or type(partition) ~= 'string' then return false end
  local before = topic .. ' partition ' .. partition
  return before ~= origin and {'moved', key, before .. ', the new one from ' .. origin}
end
local function full(letters)
  if redis.call('EXISTS', letters) == 0 then return false end
  local info = redis.call('XINFO', 'STREAM', letters)
  for i = 1, #info, 2 do
    -- no entry can follow one with the last of all ids
    if info[i] == 'last-generated-id' and info[i + 1]:find('^18446744073709551615') then
      return {'wrong type', letters, 'full stream'}
    end
  end
  return false
end
local function refusal(t)
  local found = misfit(t.schema, 'hash') or misfit(t.letters, 'stream')
    or denied('HSET', t.schema, 'f', 'v') or denied('XADD', t.letters, '*', 'f', 'v')
  for i = 1, t.rows do
    local key = KEYS[t.first_key + i - 1]
    found = found or obstacle(key, t.form, t.ttl) or moved(key, t.form, t.origins[i])
    if found then return found end
  end
  return found or (t.letter_count > 0 and full(t.letters))
end
local found = denied('HSET', ledger, 'f', 'v')
if found then return found end
for _, t in ipairs(tables) do
  found = refusal(t)
  if found then return found end
end
local now = redis.call('TIME')

-- 3. write. Redis asks only before a script's first write whether memory, disk and replicas allow
-- it, and not of a DEL: so the first one changes no row and may be denied.
local function put_fields(key, fields)
  for from = 1, #fields, 1000 do -- Lua's stack is bounded
    redis.call('HSET', key, unpack(fields, from, math.min(from + 999, #fields)))
  end
end
local function put_row(key, value, form, ttl)
  if form == 'json' then
    if ttl ~= '' then return redis.call('SET', key, value, 'PX', ttl) end
    return redis.call('SET', key, value)
  end
  redis.call('DEL', key)
  put_fields(key, cmsgpack.unpack(value))
  if ttl ~= '' then redis.call('PEXPIRE', key, ttl) end
end
put_fields(ledger, cmsgpack.unpack(ARGV[5]))
for _, t in ipairs(tables) do
  put_fields(t.schema, cmsgpack.unpack(t.columns))
  for i = t.first_letter, t.first_value - 1 do
    redis.call('XADD', t.letters, '*', unpack(cmsgpack.unpack(ARGV[i])))
  end
  for i = 0, t.rows - 1 do
    put_row(KEYS[t.first_key + i], ARGV[t.first_value + i], t.form, t.ttl)
  end
end

-- 4. the entry, and the head that points to it
local stamped = '{"committed_at_us":' .. now[1] .. string.format('%06d', now[2])
  .. ',"entry":' .. entry .. '}'
redis.call('HSET', ledger, version, stamped, 'head', version .. ' ' .. transaction)
return {'committed', ''}
"""

_T = TypeVar("_T")

log = logging.getLogger(__name__)

#: The first version whose scripts can ask for permissions before they write.
_VERSION_MIN = 7

#: Codes that begin an error and say nothing against the rows (Redis manual, "error handling").
_LATER = (
    "BUSY",
    "CLUSTERDOWN",
    "LOADING",
    "MASTERDOWN",
    "MISCONF",
    "NOREPLICAS",
    "OOM",
    "READONLY",
    "TRYAGAIN",
)
_KILLED = "SCRIPT KILL"

_LATER_TYPES = (
    redis.ConnectionError,
    redis.TimeoutError,
    redis.OutOfMemoryError,
    redis.ReadOnlyError,
    redis.exceptions.ClusterDownError,
    redis.exceptions.TryAgainError,
)
_LOGIN_TYPES = (redis.AuthenticationError, redis.exceptions.AuthenticationWrongNumberOfArgsError)

#: Not "failed" but "refused": the connection was made and the server said no to all of it.
_ANSWERED_TYPES = (redis.ResponseError, redis.BusyLoadingError, redis.AuthenticationError)

#: Keys looked for, and deleted, by one request.
_AT_ONCE = 1000


class RedisStore:
    """One connection, and what the pipeline's own keys hold.

    Raises (all methods):
        SinkUnavailableError: Redis does not answer, or not just now.
        ConfigError, RefusedError: it answers, and refuses.
    """

    def __init__(self, sink: RedisSink, pipeline: str, beside: RedisStore | None = None) -> None:
        """With the connection of ``beside``, the store of another table of the pipeline."""
        self.keys = Keys(pipeline, sink.name_of_several)
        self._sink = sink
        self._is_first = beside is None
        self._client: redis.Redis = beside._client if beside else _connect(sink, pipeline)
        self._script = self._client.register_script(PUBLISH)
        self._written = f"tables of {pipeline}" if self.keys.table else sink.table_name

    def close(self) -> None:
        self._client.close()

    def check(self) -> None:
        """Refuse a server that cannot keep the promise, and keys that this pipeline's ledger does
        not speak for.

        Raises:
            ConfigError: also if the ledger was written with another key, prefix or form.
        """
        if self._is_first:
            check_server(self._ask(lambda: self._client.info()))
        targets = self._sink.targets
        for (field, target), held in zip(targets.items(), self.ledger(*targets), strict=True):
            if held is not None and held.decode() != target:
                named = "pipeline" if field == TARGET else "table"
                raise ConfigError(
                    f"sink: pipeline {self.keys.pipeline!r} writes {held.decode()}, by its ledger, "
                    f"not {target}. Rows under the old keys would stay behind: give the {named} "
                    "with the new setting a name of its own."
                )

    def ledger(self, *names: int | str) -> list[bytes | None]:
        """Fields of the ledger's hash; ``None`` for one that is not there."""
        fields = [str(name) for name in names]
        values: Any = self._ask(lambda: self._client.hmget(self.keys.ledger, fields))
        return list(values)

    def drop_entries(self, below: int, *, dry_run: bool) -> int:
        """Delete the fields of versions ``below`` this one; how many there are."""
        named: Any = self._ask(lambda: self._client.hkeys(self.keys.ledger))
        versions = [name for name in named if name.isdigit() and int(name) < below]
        for start in () if dry_run else range(0, len(versions), _AT_ONCE):
            some = versions[start : start + _AT_ONCE]
            self._ask(partial(self._client.hdel, self.keys.ledger, *some))
        return len(versions)

    def drop(self, *, dry_run: bool) -> int:
        """Delete the pipeline's keys, rows and all; how many there are."""
        pattern, ledger = self.keys.named("*"), self.keys.ledger
        key_names: set[bytes] = self._ask(
            lambda: set(self._client.scan_iter(pattern, count=_AT_ONCE))
        )
        names = [*(key_names - {ledger}), ledger]
        for start in () if dry_run else range(0, len(names), _AT_ONCE):
            self._unlink(names[start : start + _AT_ONCE])
        return len(key_names)

    def _unlink(self, names: list[bytes]) -> None:
        self._ask(lambda: self._client.unlink(*names))

    def columns(self) -> dict[str, RedisKind]:
        """The kind of every column there ever was."""
        stored = self._ask(lambda: self._client.hgetall(self.keys.schema))
        return {_text(name): RedisKind(_text(kind)) for name, kind in stored.items()}

    def run(self, keys: Sequence[bytes], arguments: Sequence[Any]) -> list[str]:
        """Return the answer of :data:`~.script.PUBLISH`. An error that the server reports came
        before the script's first write.

        Raises:
            redis.RedisError: no answer; the script may have run, or may still run.
        """
        try:
            reply: list[bytes] = self._script(keys, arguments)
        except _ANSWERED_TYPES as error:
            raise _explained(error, self._written) from error
        return [text.decode(errors="replace") for text in reply]

    def _ask(self, question: Callable[[], _T]) -> _T:
        """Answer a question; asked again if the connection died, which shows only in use."""
        try:
            try:
                return question()
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if isinstance(error, _ANSWERED_TYPES):
                    raise
                return question()
        except redis.RedisError as error:
            raise _explained(error, self._written) from error


def check_server(info: Mapping[str, Any]) -> None:
    """Refuse a server that cannot keep the promise, by its ``INFO``.

    Raises:
        ConfigError: it is too old, or drops keys when its memory is full.
        SinkUnavailableError: it is a replica.
    """
    version = str(info.get("redis_version", "0"))
    if int(version.partition(".")[0]) < _VERSION_MIN:
        raise ConfigError(f"sink.url: Redis {version} is too old, {_VERSION_MIN} is needed.")
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise ConfigError(
            f"sink.url: Redis drops keys when its memory is full (maxmemory-policy {policy}), "
            "the ledger's or rows that the ledger says are there. Set maxmemory-policy to "
            "noeviction: writes are then refused instead, and nothing is lost."
        )
    if info.get("role") not in (None, "master"):
        raise SinkUnavailableError("sink.url leads to a replica, which takes no writes.")
    if not info.get("aof_enabled"):
        log.warning(
            "Redis keeps no append-only file: a restart takes rows and ledger back to the last "
            "snapshot. Set appendonly yes, and appendfsync always to survive a power cut."
        )


def _explained(error: redis.RedisError, table: str) -> EoPipelineError:
    """Translate an ``error`` if nothing of the request was done."""
    text = " ".join(str(error).split())
    if isinstance(error, redis.exceptions.AskError):  # MovedError is one
        return ConfigError(
            f"sink.url: this node of a Redis Cluster does not hold the pipeline's slot, "
            f"{error.host}:{error.port} does. All keys of a pipeline are in one slot: name that "
            "node."
        )
    if isinstance(error, _LOGIN_TYPES) or text.startswith("NOAUTH"):
        return ConfigError(f"sink.url: Redis refused the login: {text}")
    if isinstance(error, _LATER_TYPES) or text.startswith(_LATER) or _KILLED in text:
        return SinkUnavailableError(
            f"{table}: Redis cannot be used just now: {text}. Nothing was written; the next run "
            "tries again."
        )
    remedy = (
        " Allow it (ACL SETUSER)." if isinstance(error, redis.exceptions.NoPermissionError) else ""
    )
    return RefusedError(f"{table}: Redis refused: {text}. Nothing was written.{remedy}")


def _connect(sink: RedisSink, pipeline: str) -> redis.Redis:
    """A client that connects when first used, and never repeats a request by itself.

    The driver's own default sends a request again when its reply was lost; whether that is right
    is the protocol's to decide.
    """
    return redis.Redis.from_url(
        sink.url.get_secret_value(),
        client_name=f"eo-pipeline:{pipeline}",
        protocol=2,
        retry=Retry(NoBackoff(), 0),
        socket_connect_timeout=sink.connect_timeout,
        socket_keepalive=True,
        socket_timeout=sink.timeout,
    )


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


#: Entries of a history fetched at a time.
PAGE = 500

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RedisSession(SinkSession):
    """Publishing is one request, so that a run that dies leaves all of it or nothing.

    Redis has no open transaction: rows (4) and entry (5) wait in this process, and the script (6)
    looks, tries types and permissions, writes the rows, then the entry and the head.
    """

    keeps_ledger = None

    def __init__(self, sink: RedisSink, pipeline: str, beside: RedisSession | None = None) -> None:
        """With the connection of ``beside``, the session of another table of the pipeline."""
        super().__init__(pipeline)
        if not pipeline or set(pipeline) & set("{}"):
            raise ConfigError(f"a pipeline named {pipeline!r} cannot be a hash tag in Redis keys")
        self.sink = sink
        self.store: RedisStore = RedisStore(sink, pipeline, beside.store if beside else None)
        try:
            self.store.check()
        except RefusedError as error:
            self.close()
            raise ConfigError(f"sink.url: {error}") from error
        except EoPipelineError:
            self.close()
            raise

    def close(self) -> None:
        self.store.close()

    def head(self) -> LedgerEntry | None:
        named = self.store.ledger("head")[0]
        return None if named is None else self.entry(int(named.split()[0]))

    def entry(self, version: int) -> LedgerEntry | None:
        entry = self.store.ledger(version)[0]
        return None if entry is None else _entry_of(entry)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        since = max(since, self._floor())
        while True:
            page = [v for v in self.store.ledger(*range(since, since + PAGE)) if v is not None]
            yield from map(_entry_of, page)
            if len(page) < PAGE:
                return
            since += PAGE

    def _floor(self) -> int:
        return head.floor if (head := self.head()) else START_VERSION

    def prune(self, *, dry_run: bool) -> int:
        return self.store.drop_entries(self._floor(), dry_run=dry_run)

    def table_identity(self) -> Mapping[str, str]:
        """The kinds of the columns are written with the first rows, and stay when rows expire."""
        return {"kind": "redis"} if self.store.columns() else {}

    def was_written(self) -> bool:
        return bool(self.store.columns())

    def begin(self, entry: LedgerEntry, staged: StagedOutput) -> Publication:
        return RedisPublication(self, entry, staged, [(self, staged)])

    def keys_of(self, output: PackedOutput) -> list[bytes]:
        """Return the names of the table's keys for :data:`PUBLISH`."""
        keys = self.store.keys
        prefix = keys.named(f"{self.sink.prefix}:")
        return [keys.schema, keys.dead_letters, *(prefix + key for key in output.rows)]

    def reset(self, *, dry_run: bool) -> tuple[str, ...]:
        """Every key that begins with the pipeline's hash tag; the ledger's goes last."""
        keys = self.store.drop(dry_run=dry_run)
        return (f"{keys:,} keys that begin with {self.store.keys.named('').decode()}",)

    def check_going_back(self, entry: LedgerEntry) -> None:
        raise RefusedError(
            f"{self.sink.table_name}: rows in Redis replace each other by key: what a key "
            f"held at version {entry.target} is not kept. Nothing was changed. Start a new "
            "pipeline (fork) instead: its keys begin with its own name."
        )

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise RefusedError(
            f"{self.sink.table_name}: Redis has no snapshot to read: its SCAN may tell a key "
            "twice, and mixes rows of before and after a checkpoint that comes in between. An "
            "audit can only look at the ledger."
        )

    def dead_letter_values(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        keys = self.store.keys
        key = keys._replace(table=keys.table and "<table>").dead_letters.decode()
        raise RefusedError(
            "eo does not read dead letters back from Redis. They are in a stream: "
            f"XRANGE {key} - + COUNT 10"
        )


class RedisPublication(Publication):
    """The keys and arguments of one run of the script, which fills the tables of ``parts``."""

    session: RedisSession

    def __init__(
        self,
        session: RedisSession,
        entry: LedgerEntry,
        staged: StagedOutput,
        parts: Sequence[tuple[RedisSession, StagedOutput]],
    ) -> None:
        super().__init__(session, entry, staged)
        self._parts = parts

    def write(self) -> None:
        """Rows become keys and values in memory, within ``max_rows`` and ``max_bytes``."""
        packer = Packer(self.session.sink)
        packer.refuse_rows(staged for _, staged in self._parts)
        self._packed = [
            (session, packer.pack(session.sink, session.store.columns(), staged))
            for session, staged in self._parts
        ]

    def enter(self) -> None:
        entry = self.entry
        targets = self.session.sink.targets
        for session, _ in self._packed:
            targets |= session.sink.targets
        self._keys = [self.session.store.keys.ledger]
        self._arguments = [
            entry.version,
            entry.transaction_id,
            _named(entry.parent),
            json.dumps(entry.to_json()),
            packed([text.encode() for pair in targets.items() for text in pair]),
        ]
        for session, output in self._packed:
            self._keys += session.keys_of(output)
            self._arguments += _arguments_of(session.sink, output)

    def commit(self) -> None:
        self._check_answer(*self.session.store.run(self._keys, self._arguments))

    def _check_answer(self, word: str, first: str, second: str = "") -> None:
        """Return if the script ``committed``, raise otherwise."""
        if word == "committed":
            return
        if word == "already committed":
            raise SinkUnavailableError(
                f"Pipeline {self.session.pipeline!r}: another try of version {self.entry.version} "
                "was faster and committed this very entry; the next look at the ledger finds it."
            )
        if word == "fenced":
            raise FencedError(self.session.pipeline, self.entry.version, winner=first or None)
        why = {
            "wrong type": f"the key {first!r} holds a {second}: remove it, or set another prefix "
            "(of several tables: another name)",
            "denied": f"the user may not {first} the key {second!r}: allow it (ACL SETUSER)",
            "moved": f"the row of {first!r} came from {second}, and which is the newer one is not "
            "known: offsets of different partitions cannot be compared (were partitions added, so "
            "that keys moved?). DEL the key if the new row shall have it, or start a new pipeline",
        }
        raise RefusedError(f"Redis cannot take the rows: {why[word]}. Nothing was written.")


def _arguments_of(sink: RedisSink, output: PackedOutput) -> list[Any]:
    """Return the table's arguments of :data:`PUBLISH`."""
    return [
        len(output.rows),
        len(output.dead_letters),
        sink.store_as,
        "" if sink.ttl is None else max(1, round(sink.ttl * 1000)),
        packed([text.encode() for pair in output.columns.items() for text in pair]),
        packed(output.origins),
        *output.dead_letters,
        *output.rows.values(),
    ]


def _named(entry: EntryId | None) -> str:
    """An entry's identity as the ledger's head holds it; nothing before the first."""
    return "" if entry is None else f"{entry.version} {entry.transaction_id}"


def _entry_of(raw: bytes) -> LedgerEntry:
    """The entry in a field of the ledger, with the time that Redis put there."""
    held = json.loads(raw)
    committed_at = _EPOCH + timedelta(microseconds=held["committed_at_us"])
    return LedgerEntry.from_json(held["entry"] | {"committed_at": committed_at.isoformat()})
