"""One pipeline's place in Redis."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa
import redis

from eo_pipeline.crashpoints import CrashPoint, Reach, keep_going
from eo_pipeline.errors import (
    CommitUnknownError,
    ConfigError,
    EoPipelineError,
    FencedError,
    RefusedError,
)
from eo_pipeline.ledger.entry import EntryId, LedgerEntry
from eo_pipeline.sinks.protocol import CommitOutcome, SinkSession
from eo_pipeline.sinks.redis.connect import ANSWERED_TYPES, check_server, connect, explained
from eo_pipeline.sinks.redis.rows import Batch, Packer
from eo_pipeline.sinks.redis.script import PUBLISH, packed
from eo_pipeline.sinks.redis.sink import RedisSink
from eo_pipeline.sinks.redis.types import Kind
from eo_pipeline.sinks.removal import goes_back
from eo_pipeline.staging.rows import StagedOutput

_T = TypeVar("_T")

#: Entries of a history fetched at a time.
PAGE = 500

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Keys(NamedTuple):
    """Names of a pipeline's keys. The braces are the hash tag that puts them in one slot."""

    pipeline: str

    def named(self, name: str) -> bytes:
        return f"{{{self.pipeline}}}:{name}".encode()

    @property
    def ledger(self) -> bytes:
        """A hash: a field for every version, ``head`` and ``target``."""
        return self.named("eo_ledger")

    @property
    def schema(self) -> bytes:
        """A hash: the kind of every column there ever was."""
        return self.named("eo_schema")

    @property
    def dead_letters(self) -> bytes:
        """A stream."""
        return self.named("eo_dead_letters")


class RedisSession(SinkSession):
    """Publishing is one request, so that a run that dies leaves all of it or nothing.

    1. **look**: the entry's own id at its version is ``ALREADY_COMMITTED``; another id there, or
       another head, is ``FencedError``. The script looks again; this spares the packing.
    2. **verify**: every staged file is there with its size.
    3. **pack**: rows become keys and values in memory, within ``max_rows`` and ``max_bytes``.
    4. **script**: looks, tries types and permissions, writes rows, then the entry and the head.

    Both named moments before the commit come before 4: Redis has no open transaction.
    """

    def __init__(self, sink: RedisSink, pipeline: str) -> None:
        if not pipeline or set(pipeline) & set("{}"):
            raise ConfigError(f"a pipeline named {pipeline!r} cannot be a hash tag in Redis keys")
        self._sink = sink
        self._pipeline = pipeline
        self._keys = Keys(pipeline)
        self._client = connect(sink, pipeline)
        self._script = self._client.register_script(PUBLISH)
        try:
            check_server(self._ask(lambda: self._client.info()))
            self._check_target()
        except RefusedError as error:
            self.close()
            raise ConfigError(f"sink.url: {error}") from error
        except EoPipelineError:
            self.close()
            raise

    def close(self) -> None:
        self._client.close()

    def head(self) -> LedgerEntry | None:
        named = self._fields("head")[0]
        return None if named is None else self.entry(int(named.split()[0]))

    def entry(self, version: int) -> LedgerEntry | None:
        found = self._fields(version)[0]
        return None if found is None else _entry_of(found)

    def history(self, since: int = 0) -> Iterator[LedgerEntry]:
        while True:
            page = [v for v in self._fields(*range(since, since + PAGE)) if v is not None]
            yield from map(_entry_of, page)
            if len(page) < PAGE:
                return
            since += PAGE

    def publish(
        self, entry: LedgerEntry, staged: StagedOutput, reach: Reach = keep_going
    ) -> CommitOutcome:
        if entry.pipeline != self._pipeline:
            raise ValueError(f"an entry of {entry.pipeline!r} in a session of {self._pipeline!r}")
        if self._has_landed(entry):  # step 1
            return CommitOutcome.ALREADY_COMMITTED
        if goes_back(entry):
            self.check_going_back(entry)
        staged.verify()  # step 2
        batch = Packer(self._sink, self._columns()).pack(staged)  # step 3
        reach(CrashPoint.ROWS_SENT)
        reach(CrashPoint.ENTRY_SENT)
        return self._run(entry, batch)  # step 4

    def check_going_back(self, entry: LedgerEntry) -> None:
        raise RefusedError(
            f"{self._sink.table_name}: rows in Redis replace each other by key: what a key "
            f"held at version {entry.target} is not kept. Nothing was changed. Start a new "
            "pipeline (fork) instead: its keys begin with its own name."
        )

    def lineage(self, since: int = 0) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        raise RefusedError(
            f"{self._sink.table_name}: Redis has no snapshot to read: its SCAN may tell a key "
            "twice, and mixes rows of before and after a checkpoint that comes in between. An "
            "audit can only look at the ledger."
        )

    def _has_landed(self, entry: LedgerEntry) -> bool:
        """True if the ledger holds ``entry`` itself.

        Raises:
            FencedError: its version is taken, or its parent is not the head.
        """
        raw, head = self._fields(entry.version, "head")
        if raw is not None:
            held = _entry_of(raw)
            if held.id == entry.id:
                return True
            raise FencedError(self._pipeline, entry.version, winner=held.transaction_id)
        if (head or b"").decode() != _named(entry.parent):
            raise FencedError(self._pipeline, entry.version, winner=None)
        return False

    def _run(self, entry: LedgerEntry, batch: Batch) -> CommitOutcome:
        sink = self._sink
        columns = [text.encode() for pair in batch.columns.items() for text in pair]
        before = self._keys.named(f"{sink.prefix}:")
        keys = [self._keys.ledger, self._keys.schema, self._keys.dead_letters]
        arguments = [
            entry.version,
            entry.transaction_id,
            _named(entry.parent),
            json.dumps(entry.to_json()),
            sink.target,
            sink.store_as,
            "" if sink.ttl is None else max(1, round(sink.ttl * 1000)),
            packed(columns),
            len(batch.dead_letters),
            *batch.dead_letters,
            *batch.rows.values(),
        ]
        try:
            reply: list[bytes] = self._script([*keys, *(before + k for k in batch.rows)], arguments)
        except ANSWERED_TYPES as error:
            return self._settle(entry, error)
        except redis.RedisError as error:
            raise CommitUnknownError(
                f"Pipeline {self._pipeline!r}, version {entry.version}: the connection to Redis "
                f"was lost before the reply ({error}). Transaction {entry.transaction_id} may or "
                "may not have landed; only it may be tried again."
            ) from error
        return self._outcome(entry, *(text.decode(errors="replace") for text in reply))

    def _settle(self, entry: LedgerEntry, error: redis.RedisError) -> CommitOutcome:
        """An error that the server reports came before the script's first write. Looked up all the
        same: it costs one question.
        """
        if self._has_landed(entry):
            return CommitOutcome.ALREADY_COMMITTED
        raise explained(error, self._sink.table_name) from error

    def _outcome(
        self, entry: LedgerEntry, word: str, first: str, second: str = ""
    ) -> CommitOutcome:
        """What the script answered, in the contract's words."""
        outcomes = {
            "committed": CommitOutcome.COMMITTED,
            "already committed": CommitOutcome.ALREADY_COMMITTED,
        }
        if word in outcomes:
            return outcomes[word]
        if word == "fenced":
            raise FencedError(self._pipeline, entry.version, winner=first or None)
        why = {
            "wrong type": f"the key {first!r} holds a {second}: remove it, or set another prefix",
            "denied": f"the user may not {first} the key {second!r}: allow it (ACL SETUSER)",
        }
        raise RefusedError(f"Redis cannot take the rows: {why[word]}. Nothing was written.")

    def _check_target(self) -> None:
        """Refuse keys that this pipeline's ledger does not speak for.

        Raises:
            ConfigError: it was written with another key, prefix or form.
        """
        held = self._fields("target")[0]
        if held is not None and held.decode() != self._sink.target:
            raise ConfigError(
                f"sink: pipeline {self._pipeline!r} writes {held.decode()}, by its ledger, not "
                f"{self._sink.target}. Rows under the old keys would stay behind: give the "
                "pipeline with the new setting a name of its own."
            )

    def _columns(self) -> dict[str, Kind]:
        found = self._ask(lambda: self._client.hgetall(self._keys.schema))
        return {_text(name): Kind(_text(kind)) for name, kind in found.items()}

    def _fields(self, *names: int | str) -> list[bytes | None]:
        fields = [str(name) for name in names]
        found: Any = self._ask(lambda: self._client.hmget(self._keys.ledger, fields))
        return list(found)

    def _ask(self, question: Callable[[], _T]) -> _T:
        """Answer a question; asked again if the connection died, which shows only in use."""
        try:
            try:
                return question()
            except (redis.ConnectionError, redis.TimeoutError) as error:
                if isinstance(error, ANSWERED_TYPES):
                    raise
                return question()
        except redis.RedisError as error:
            raise explained(error, self._sink.table_name) from error


def _named(entry: EntryId | None) -> str:
    """An entry's identity as the ledger's head holds it; nothing before the first."""
    return "" if entry is None else f"{entry.version} {entry.transaction_id}"


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode()


def _entry_of(raw: bytes) -> LedgerEntry:
    """The entry in a field of the ledger, with the time that Redis put there."""
    held = json.loads(raw)
    committed_at = _EPOCH + timedelta(microseconds=held["committed_at_us"])
    return LedgerEntry.from_json(held["entry"] | {"committed_at": committed_at.isoformat()})
