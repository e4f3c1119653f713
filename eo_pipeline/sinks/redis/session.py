"""One pipeline's place in Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta

import pyarrow as pa

from eo_pipeline.errors import (
    ConfigError,
    EoPipelineError,
    FencedError,
    RefusedError,
    SinkUnavailableError,
)
from eo_pipeline.ledger.entry import START_VERSION, EntryId, LedgerEntry
from eo_pipeline.sinks.protocol import Publication, SinkSession
from eo_pipeline.sinks.redis.config import RedisSink
from eo_pipeline.sinks.redis.rows import PackedOutput, Packer, packed
from eo_pipeline.sinks.redis.store import RedisStore
from eo_pipeline.staging.rows import StagedOutput

#: Entries of a history fetched at a time.
PAGE = 500

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RedisSession(SinkSession):
    """Publishing is one request, so that a run that dies leaves all of it or nothing.

    Redis has no open transaction: rows (4) and entry (5) wait in this process, and the script (6)
    looks, tries types and permissions, writes the rows, then the entry and the head.
    """

    keeps_ledger = None

    def __init__(self, sink: RedisSink, pipeline: str) -> None:
        super().__init__(pipeline)
        if not pipeline or set(pipeline) & set("{}"):
            raise ConfigError(f"a pipeline named {pipeline!r} cannot be a hash tag in Redis keys")
        self.sink = sink
        self.store = RedisStore(sink, pipeline)
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
        found = self.store.ledger(version)[0]
        return None if found is None else _entry_of(found)

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
        return RedisPublication(self, entry, staged)

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


class RedisPublication(Publication):
    """The keys and arguments of one run of the script (:mod:`.script`)."""

    session: RedisSession

    def write(self) -> None:
        """Rows become keys and values in memory, within ``max_rows`` and ``max_bytes``."""
        packer = Packer(self.session.sink, self.session.store.columns())
        self._packed = packer.pack(self.staged)

    def enter(self) -> None:
        sink, entry, output = self.session.sink, self.entry, self._packed
        columns = [text.encode() for pair in output.columns.items() for text in pair]
        self._arguments = [
            entry.version,
            entry.transaction_id,
            _named(entry.parent),
            json.dumps(entry.to_json()),
            sink.identity,
            sink.store_as,
            "" if sink.ttl is None else max(1, round(sink.ttl * 1000)),
            packed(columns),
            len(output.dead_letters),
            packed(output.origins),
            *output.dead_letters,
            *output.rows.values(),
        ]

    def commit(self) -> None:
        self._check_answer(*self.session.store.run(self._keys(self._packed), self._arguments))

    def _keys(self, output: PackedOutput) -> list[bytes]:
        own = self.session.store.keys
        prefix = own.named(f"{self.session.sink.prefix}:")
        return [own.ledger, own.schema, own.dead_letters, *(prefix + key for key in output.rows)]

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
            "wrong type": f"the key {first!r} holds a {second}: remove it, or set another prefix",
            "denied": f"the user may not {first} the key {second!r}: allow it (ACL SETUSER)",
            "moved": f"the row of {first!r} came from {second}, and which is the newer one is not "
            "known: offsets of different partitions cannot be compared (were partitions added, so "
            "that keys moved?). DEL the key if the new row shall have it, or start a new pipeline",
        }
        raise RefusedError(f"Redis cannot take the rows: {why[word]}. Nothing was written.")


def _named(entry: EntryId | None) -> str:
    """An entry's identity as the ledger's head holds it; nothing before the first."""
    return "" if entry is None else f"{entry.version} {entry.transaction_id}"


def _entry_of(raw: bytes) -> LedgerEntry:
    """The entry in a field of the ledger, with the time that Redis put there."""
    held = json.loads(raw)
    committed_at = _EPOCH + timedelta(microseconds=held["committed_at_us"])
    return LedgerEntry.from_json(held["entry"] | {"committed_at": committed_at.isoformat()})
