"""The ledger's values: what one version of a pipeline is. Pure, no I/O.

The ledger of a pipeline is the list of its :class:`LedgerEntry`, version 0, 1, 2 ... without a
gap. It lives in the sink and moves only together with the sink's data, from version n to n + 1,
and only if its head is exactly the parent the new entry was planned from.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import PlainSerializer, TypeAdapter

from eo_pipeline.ledger.offsets import StoredOffsets, StoredRanges, TopicPartition

#: The version of the entry that holds the resolved start offsets and no rows.
START_VERSION = 0

#: The column that every written row carries: the number of its checkpoint, which is the ledger
#: version that first published it. A replay publishes it again under the same number.
CHECKPOINT_COLUMN = "_eo_checkpoint"


#: Written as every release wrote it; pydantic alone would write Z for +00:00.
_Instant = Annotated[datetime, PlainSerializer(datetime.isoformat)]


class Operation(StrEnum):
    """What a ledger entry did to the pipeline."""

    START = "start"
    FORWARD = "forward"
    REWIND = "rewind"
    REPLAY = "replay"
    FORK = "fork"
    ACCEPT_LOSS = "accept_loss"
    ADOPT = "adopt"


class EntryId(NamedTuple):
    """Identity of one entry: a number alone would match again after a restored backup."""

    version: int
    transaction_id: str


@dataclass(frozen=True)
class Counts:
    """What one checkpoint read and wrote.

    ``records``: Kafka records read. ``bytes``: of their values. ``rows``: written to the table.
    ``dead_letters``: written to the dead-letter table. ``tombstones``: records without a value
    that were skipped on request. ``rows_total``: rows written by this pipeline up to and
    including this version, so that nobody has to count the table. ``unknown``: records that became
    rows without the fields that ``value_schema`` does not name (None: not counted, by an older
    version), ``unknown_fields``: names of such, not always all.
    """

    records: int = 0
    bytes: int = 0
    rows: int = 0
    dead_letters: int = 0
    tombstones: int = 0
    rows_total: int = 0
    unknown: int | None = None
    unknown_fields: tuple[str, ...] = ()


@dataclass(frozen=True)
class Identity:
    """What an entry stands on, by identity: a name may come to mean another thing.

    ``parent`` is the parent's :attr:`LedgerEntry.content_hash`, so that entries form a chain; it
    is ``None`` for the first entry and on top of one that an earlier release wrote. ``sink`` is
    what the store said it publishes into and how (the table's own identity, the mode, the key).
    ``past_topics`` are the positions reached in topics whose names are not subscribed any more or
    mean another topic now, by Kafka's topic UUID: what was read once is never read again.
    """

    parent: str | None = None
    sink: Mapping[str, str] = field(default_factory=dict)
    past_topics: Mapping[str, StoredOffsets] = field(default_factory=dict)


def new_transaction_id() -> str:
    """A transaction id that was never used before: 32 hexadecimal digits."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class LedgerEntry:
    """One version of a pipeline.

    ``offsets`` is where reading continues after this entry; ``ranges`` is what this entry read
    (empty ranges left out). ``topic_ids`` are Kafka's topic UUIDs (KIP-516). ``target`` is the
    version a rewind or replay aimed at. ``committed_at`` is set by the sink's clock and is
    ``None`` until the entry is in the ledger. ``details`` holds remarks for people (the reason,
    who asked, holes accepted); nothing decides by them. ``identity`` is what is compared.
    """

    pipeline: str
    ledger_id: str
    version: int
    transaction_id: str
    parent: EntryId | None
    operation: Operation
    offsets: StoredOffsets
    ranges: StoredRanges = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    counts: Counts = Counts()
    target: int | None = None
    run_id: str = ""
    started_at: _Instant = field(default_factory=lambda: datetime.now(UTC))
    committed_at: _Instant | None = None
    details: Mapping[str, Any] = field(default_factory=dict)
    identity: Identity = Identity()

    def __post_init__(self) -> None:
        expected = self.version - 1
        if self.parent is None:
            if self.version != START_VERSION:
                raise ValueError(f"version {self.version} needs a parent")
        elif self.parent.version != expected:
            raise ValueError(f"version {self.version} cannot follow {self.parent.version}")

    @property
    def id(self) -> EntryId:
        return EntryId(self.version, self.transaction_id)

    @property
    def checkpoint(self) -> int:
        """The number the rows of this entry carry in ``_eo_checkpoint``."""
        if self.operation is Operation.REPLAY and self.target is not None:
            return self.target
        return self.version

    def is_child_of(self, head: LedgerEntry | None) -> bool:
        """True if this entry was planned from exactly ``head``."""
        return self.parent == (head.id if head else None)

    def child(
        self, operation: Operation, run_id: str, offsets: Mapping[TopicPartition, int]
    ) -> LedgerEntry:
        """The entry that follows this one: a new transaction, nothing read or counted yet."""
        return LedgerEntry(
            pipeline=self.pipeline,
            ledger_id=self.ledger_id,
            version=self.version + 1,
            transaction_id=new_transaction_id(),
            parent=self.id,
            operation=operation,
            offsets=offsets,
            topic_ids=self.topic_ids,
            counts=Counts(rows_total=self.counts.rows_total),
            run_id=run_id,
            identity=replace(self.identity, parent=self.content_hash),
        )

    def with_counts(self, counts: Counts) -> LedgerEntry:
        return replace(self, counts=counts)

    @property
    def content_hash(self) -> str:
        """SHA-256, in hexadecimal digits, of all that the entry says but ``committed_at``.

        It is the same before and after a store has kept the entry: the order of keys, the zone of
        a time, a whole number written as 5.0 and a value that is absent instead of null or empty
        make no difference.
        """
        started_at = self.started_at.astimezone(UTC)
        said = replace(self, started_at=started_at, committed_at=None).to_json()
        return hashlib.sha256(json.dumps(_canonical(said), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values that :meth:`from_json` reads back, whatever the sink.

        ``identity`` is left out if it says nothing, as in the entries of earlier releases.
        """
        written: dict[str, Any] = _format().dump_python(self, mode="json")
        if self.identity == Identity():
            del written["identity"]
        return written

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> LedgerEntry:
        """The inverse of :meth:`to_json`. What a newer version adds is ignored, above all counts.

        Raises:
            ValueError: it is no entry; pydantic's error names the fields.
        """
        lost = _ALWAYS_WRITTEN - raw.keys()
        if lost:
            raise ValueError(f"a ledger entry without {', '.join(sorted(lost))}")
        return _format().validate_python(raw)


#: These have a default for a new entry; a stored one that lost them must not be read as if new.
_ALWAYS_WRITTEN = frozenset({"ranges", "topic_ids", "counts", "started_at"})


def _canonical(value: Any) -> Any:
    """Without what stores of JSON may change: nulls and empty values, and 5.0 that came as 5."""
    if isinstance(value, Mapping):
        return {k: _canonical(v) for k, v in value.items() if v is not None and v not in ({}, [])}
    if isinstance(value, list):
        return [_canonical(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def _format() -> TypeAdapter[LedgerEntry]:
    return TypeAdapter(LedgerEntry)
