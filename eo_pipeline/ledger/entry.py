"""Ledger entries: one version of a pipeline each. Pure values, no I/O.

The ledger of a pipeline is the list of its :class:`LedgerEntry`, version 0, 1, 2 ... without a
gap. It lives in the sink and moves only together with the sink's data, from version n to n + 1,
and only if its head is exactly the parent the new entry was planned from.
"""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, NamedTuple

from pydantic import Field, PlainSerializer, TypeAdapter

from eo_pipeline.errors import LedgerDamagedError
from eo_pipeline.ledger.marks import StoredMarks
from eo_pipeline.ledger.offsets import (
    OffsetRange,
    StoredOffsets,
    StoredRanges,
    TopicPartition,
)
from eo_pipeline.ledger.schemas import KnownSchemas, LastWritten, ReadWith, WrittenWith

#: The version of the entry that holds the resolved start offsets and no rows.
START_VERSION = 0

#: The column that every written row carries: the number of its checkpoint, which is the ledger
#: version that first published it. A replay publishes it again under the same number.
CHECKPOINT_COLUMN = "_eo_checkpoint"


#: Written as every release wrote it; pydantic alone would write Z for +00:00.
_Instant = Annotated[datetime, PlainSerializer(datetime.isoformat)]


class Operation(StrEnum):
    """Operation of a ledger entry."""

    START = "start"
    FORWARD = "forward"
    REWIND = "rewind"
    REPLAY = "replay"
    FORK = "fork"
    ACCEPT_LOSS = "accept_loss"
    ADOPT = "adopt"
    PRUNE = "prune"


class EntryId(NamedTuple):
    """Identity of one entry: a number alone would match again after a restored backup."""

    version: int
    transaction_id: str


#: Of ``LedgerEntry.details``: which code made the entry's rows.
CODE_VERSION = "code_version"

#: Of a replay's ``details``: the entry whose schemas it reads with, if not its target; and that it
#: is there for what was set aside, so that what policies of change kept out then is read as now.
READ_AS = "read_as"
REDRIVE = "redrive"

#: Of the ``details`` of an entry that read something: records of which the store itself refused a
#: row, each with topic, partition, offset and error; they are among the dead letters.
REFUSED = "refused_by_store"


@dataclass(frozen=True)
class Checksum:
    """Checksum of rows in any order: a ``digest`` by the rules that ``algorithm`` names, of
    these ``columns``, each with its type as Spark has it in JSON.
    """

    algorithm: str
    digest: str
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Costs:
    """Costs of an entry until its manifest; whole numbers, which every store keeps.

    ``cpu_ms``: processor time of the process that made it, since the promise before (or since its
    run began), so that a commit counts with what comes after it. ``spark_cpu_ms``: the same of
    the JVM, if Spark ran in one of this process's own; None: nobody can tell. ``phases_ms``: time
    by phase. ``bytes_out``: of what was staged, Parquet's or, of a small batch, Arrow's.
    ``lag``: offsets that still waited after what it read, when it was planned.
    """

    cpu_ms: int = 0
    spark_cpu_ms: int | None = None
    phases_ms: Mapping[str, int] = field(default_factory=dict)
    bytes_out: int = 0
    lag: int | None = None


@dataclass(frozen=True)
class Counts:
    """Numbers of what one checkpoint read and wrote.

    ``records``: Kafka records read. ``bytes``: of their values, ``key_bytes`` of their keys (None:
    not counted, by an older version). ``rows``: written to the table.
    ``dead_letters``: written to the dead-letter table. ``tombstones``: records without a value
    that were skipped on request. ``rows_total``: rows written by this pipeline up to and
    including this version, so that nobody has to count the table. ``unknown``: records that became
    rows without the fields that ``value_schema`` does not name (None: not counted, by an older
    version), ``unknown_fields``: names of such, not always all. ``checksum`` is of the rows and
    ``dead_letters_checksum`` of the dead letters as they were staged (None: not made, by an older
    version or because the sink could not give them back to be compared). ``schemas`` are those of
    a registry that the records were read with (None: there is no registry), ``key_schemas`` those
    of their keys. ``costs`` is what it took (None: not measured). ``written`` is what the rows were
    written as (None: by an older version, or there are none).

    Of a pipeline that fills several tables ``tables`` has the counts of each by its name. The
    others are then sums, with each record read counted once; ``rest`` is the number of records that
    no table takes; and only ``tables`` have checksums, schemas and ``written``.
    """

    records: int = 0
    bytes: int = 0
    rows: int = 0
    dead_letters: int = 0
    tombstones: int = 0
    rows_total: int = 0
    unknown: int | None = None
    unknown_fields: tuple[str, ...] = ()
    checksum: Checksum | None = None
    dead_letters_checksum: Checksum | None = None
    schemas: ReadWith | None = None
    key_schemas: ReadWith | None = None
    key_bytes: int | None = None
    costs: Costs | None = None
    written: WrittenWith | None = None
    rest: int | None = None
    tables: Mapping[str, Counts] = field(default_factory=dict)

    def totals(self, *removed: Counts) -> Counts:
        """Return the counts that the next entry begins with: the rows written so far, without those
        of ``removed``.
        """
        return Counts(
            rows_total=self.rows_total - sum(counts.rows for counts in removed),
            tables={
                name: of_table.totals(*(r.tables[name] for r in removed if name in r.tables))
                for name, of_table in self.tables.items()
            },
        )


@dataclass(frozen=True)
class Floor:
    """The first ``version`` the ledger keeps, by the entry ``since`` that said so: what is below is
    removed, sooner or later, and nobody goes back there.
    """

    version: int
    since: int


@dataclass(frozen=True)
class Identity:
    """Identities of what an entry refers to: a name may come to mean another thing.

    ``parent`` is the parent's :attr:`LedgerEntry.content_hash`, so that entries form a chain; it
    is ``None`` for the first entry and on top of one that an earlier release wrote. ``sink`` is
    what the store said it publishes into and how (the table's own identity, the mode, the key).
    ``past_topics`` are the positions reached in topics whose names are not subscribed any more or
    mean another topic now, by Kafka's topic UUID: what was read once is never read again.
    ``schemas`` are those of a registry that earlier entries were read with, ``key_schemas``
    those of their keys; ``written`` is what the newest of them was written as. ``floor`` is None in
    a ledger that was never pruned. ``marks`` tell the logs that were read from others; an entry of
    an earlier release has none. Of a pipeline that fills several tables ``tables`` has ``sink``,
    ``schemas``, ``key_schemas`` and ``written`` of each by its name; ``value`` is what one of those
    that appeared is of, ``rewound_to`` the version to which the ledger was rewound while a table
    was out of the document, so that its later rows may still be there.
    """

    parent: str | None = None
    sink: Mapping[str, str] = field(default_factory=dict)
    past_topics: Mapping[str, StoredOffsets] = field(default_factory=dict)
    schemas: KnownSchemas = field(default_factory=KnownSchemas)
    key_schemas: KnownSchemas = field(default_factory=KnownSchemas)
    written: LastWritten | None = None
    floor: Floor | None = None
    marks: StoredMarks = field(default_factory=dict)
    tables: Mapping[str, Identity] = field(default_factory=dict)
    value: str | None = None
    rewound_to: int | None = None


class Stored(NamedTuple):
    """Hashes of an entry that was read: of its content ``as_read``, and as it was ``sealed`` when
    it was written; None if an earlier release wrote it, without a hash.
    """

    as_read: str
    sealed: str | None


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
    who asked, holes accepted), and how ranges were read, if otherwise than as ever; nothing else
    decides by them. ``identity`` is what is compared.
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
    #: How it was found where it is kept; None for an entry that was made here.
    stored: Annotated[Stored | None, Field(exclude=True)] = field(
        default=None, init=False, compare=False, repr=False
    )

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
        """True if this entry was planned from exactly ``head``, as it is: a parent whose content
        was changed since is another one. An entry of an earlier release does not know its content.
        """
        if head is None or self.parent is None:
            return self.parent is None and head is None
        seal = self.identity.parent
        return self.parent == head.id and (seal is None or seal == head.content_hash)

    @property
    def is_altered(self) -> bool:
        """True if it differs from the entry that was written: it was changed in the store."""
        return self.stored is not None and self.stored.sealed not in (None, self.stored.as_read)

    def child(
        self, operation: Operation, run_id: str, offsets: Mapping[TopicPartition, int]
    ) -> LedgerEntry:
        """Return the next entry: a new transaction, nothing read or counted yet."""
        return LedgerEntry(
            pipeline=self.pipeline,
            ledger_id=self.ledger_id,
            version=self.version + 1,
            transaction_id=new_transaction_id(),
            parent=self.id,
            operation=operation,
            offsets=offsets,
            topic_ids=self.topic_ids,
            counts=self.counts.totals(),
            run_id=run_id,
            identity=replace(
                self._identity_after(),
                parent=self._hash_for_children,
                tables={name: self.of_table(name)._identity_after() for name in self.tables},
            ),
        )

    def _identity_after(self) -> Identity:
        """Return the identity that the next entry begins with."""
        return replace(
            self.identity,
            schemas=self.known_schemas,
            key_schemas=self.known_key_schemas,
            written=self.last_written,
        )

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the tables that this entry or an earlier one filled, of a pipeline with several
        tables; empty for one with a single table.
        """
        return tuple(self.identity.tables)

    @property
    def values(self) -> dict[str, str]:
        """Values of the tables that appeared until this entry, by the tables' names."""
        of_tables = self.identity.tables.items()
        return {name: table.value for name, table in of_tables if table.value is not None}

    def of_table(self, name: str) -> LedgerEntry:
        """This entry as one of the table ``name`` alone: its counts and its identity. To be read
        only; a table that no entry filled yet has neither.
        """
        identity = self.identity.tables.get(name, Identity())
        of_table = replace(
            self,
            counts=self.counts.tables.get(name, Counts()),
            identity=replace(
                identity,
                parent=self.identity.parent,
                floor=self.identity.floor,
                marks=self.identity.marks,
            ),
        )
        object.__setattr__(of_table, "stored", self.stored)
        return of_table

    def ranges_of(self, topics: Collection[str]) -> tuple[OffsetRange, ...]:
        """Return the ranges of ``topics``; all if there are none."""
        return tuple(r for r in self.ranges if not topics or r.topic in topics)

    @property
    def offsets_without_record(self) -> int:
        """Offsets of the ranges that held no record: markers of transactions, aborted records,
        compacted ones.
        """
        return max(0, sum(r.span for r in self.ranges) - self.counts.records)

    @property
    def lag_before(self) -> int | None:
        """Offsets that waited when the entry was planned; None where nobody asked Kafka."""
        after = self.counts.costs.lag if self.counts.costs else None
        return None if after is None else after + sum(r.span for r in self.ranges)

    @property
    def floor(self) -> int:
        """The first version that can be gone back to."""
        return self.identity.floor.version if self.identity.floor else START_VERSION

    @property
    def known_schemas(self) -> KnownSchemas:
        """The schemas that this entry and those below it were read with."""
        return self._known_after(self.identity.schemas, self.counts.schemas)

    @property
    def known_key_schemas(self) -> KnownSchemas:
        """The schemas of keys, as :attr:`known_schemas`."""
        return self._known_after(self.identity.key_schemas, self.counts.key_schemas)

    def _known_after(self, before: KnownSchemas, read: ReadWith | None) -> KnownSchemas:
        """Return ``before`` with the schemas of this entry. A replay uses old schemas again, which
        the next run must not take for the last ones.
        """
        after = before.after(self.version, read)
        is_back = self.operation is Operation.REPLAY and before.reader != ""
        return replace(after, last=before.last, reader=before.reader) if is_back else after

    @property
    def last_written(self) -> LastWritten | None:
        """The columns of the newest rows, of this entry or of one below it."""
        return LastWritten.after(self.identity.written, self.version, self.counts.written)

    def with_counts(self, counts: Counts) -> LedgerEntry:
        return replace(self, counts=counts)

    @property
    def content_hash(self) -> str:
        """SHA-256, in hexadecimal digits, of all that the entry says but ``committed_at``.

        It is the same before and after a store has kept the entry: the order of keys, the zone of
        a time, a whole number written as 5.0 and a value that is absent instead of null or empty
        make no difference. Of an entry that was read it is that of what was found.
        """
        return self.stored.as_read if self.stored else _hash(self._written())

    @property
    def _hash_for_children(self) -> str | None:
        """None on top of an entry without a seal: a later release may read it with more in it."""
        unsealed = self.stored is not None and self.stored.sealed is None
        return None if unsealed else self.content_hash

    def to_json(self) -> dict[str, Any]:
        """A dictionary of JSON values that :meth:`from_json` reads back, whatever the sink.

        With a seal: the hash of all that is written, in ``identity``.
        """
        written = self._written()
        return {**written, "identity": {**written["identity"], SEAL: _hash(written)}}

    def _written(self) -> dict[str, Any]:
        written: dict[str, Any] = _format().dump_python(self, mode="json")
        identity = _identity_written(self.identity, written["identity"])
        return {**written, "counts": _counts_written(written["counts"]), "identity": identity}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> LedgerEntry:
        """The inverse of :meth:`to_json`. What a newer version adds is ignored, above all counts,
        and belongs to the hash all the same; what stands beside the fields of an entry does not.

        One that was changed meanwhile is read as it is; :attr:`is_altered` tells.

        Raises:
            LedgerDamagedError: it is no entry; the text names the fields.
        """
        try:
            if lost := _ALWAYS_WRITTEN - raw.keys():
                raise ValueError(f"it has no {', '.join(sorted(lost))}")
            entry = _format().validate_python(raw)
            stored = Stored(_hash(raw), (raw.get("identity") or {}).get(SEAL))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            version, reason = raw.get("version", START_VERSION), " ".join(str(error).split())
            name = str(raw.get("pipeline"))
            raise LedgerDamagedError(name, version, f"cannot be read: {reason}") from error
        object.__setattr__(entry, "stored", stored)
        return entry


def _counts_written(counts: dict[str, Any]) -> dict[str, Any]:
    """Leave out what was not counted, and the tables of a pipeline that has one."""
    tables = {name: _counts_written(of_table) for name, of_table in counts.pop("tables").items()}
    counted = {k: v for k, v in counts.items() if v not in (None, [])}
    return {**counted, "tables": tables} if tables else counted


def _identity_written(identity: Identity, written: dict[str, Any]) -> dict[str, Any]:
    """Leave out what earlier releases did not have, if there is nothing of it."""
    for name in ("schemas", "key_schemas"):
        if not getattr(identity, name).held:
            written.pop(name)
    for name in ("written", "floor", "value", "rewound_to"):
        if getattr(identity, name) is None:
            written.pop(name)
    if not identity.marks:
        written.pop("marks")
    tables = written.pop("tables")
    if not tables:
        return written
    of_tables = {
        name: _identity_written(of_table, tables[name])
        for name, of_table in identity.tables.items()
    }
    return {**written, "tables": of_tables}


#: These have a default for a new entry; a stored one that lost them must not be read as if new.
_ALWAYS_WRITTEN = frozenset({"ranges", "topic_ids", "counts", "started_at"})


#: Where in ``identity`` the hash of the whole entry is kept.
SEAL = "content"

#: What of an entry's JSON values its hash covers.
_HASHED = frozenset(f.name for f in fields(LedgerEntry)) - {"stored", "committed_at"}


def _hash(raw: Mapping[str, Any]) -> str:
    """See :attr:`LedgerEntry.content_hash`; of an entry's JSON values, with a seal or without."""
    started_at = datetime.fromisoformat(raw["started_at"]).astimezone(UTC).isoformat()
    identity = {k: v for k, v in (raw.get("identity") or {}).items() if k != SEAL}
    content = {name: raw[name] for name in _HASHED & raw.keys()}
    content |= {"started_at": started_at, "identity": identity}
    return hashlib.sha256(json.dumps(_canonical(content), sort_keys=True).encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Return ``value`` in a form that stores of JSON keep: no nulls, no empty values, 5.0 as 5."""
    if isinstance(value, Mapping):
        values = {k: _canonical(v) for k, v in value.items()}
        return {k: v for k, v in values.items() if v is not None and v not in ({}, [])}
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


@cache
def _format() -> TypeAdapter[LedgerEntry]:
    return TypeAdapter(LedgerEntry)
