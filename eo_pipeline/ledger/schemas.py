"""Schemas that an entry was read and written with, as the ledger holds them. Pure, no I/O.

The key of a schema is its number in the registry, in decimal digits, or its GUID. Numbers belong
to one registry, and a registry may be lost or filled anew. The ledger therefore holds each text
once, so that old records can be read again without a registry.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from eo_pipeline.errors import LedgerDamagedError

_DIGITS = 16

#: Kinds of schemas as registries name them; texts of ledgers that name none are Avro.
AVRO = "AVRO"
JSON_SCHEMA = "JSON"
PROTOBUF = "PROTOBUF"


@dataclass(frozen=True)
class ReadWith:
    """The schemas of one entry's records, by their keys.

    ``reader`` gave the columns, ``writers`` are those that records were written with. ``unknown``
    are keys that no schema was found for, not always all: their records were bad ones. ``texts``
    are those of reader and writers that no earlier entry holds, ``types`` what a registry calls
    those of them that are not Avro. ``message`` is the one of each Protobuf schema that was read;
    the first for "". ``quarantined`` are paths of fields: by policy records were bad whose writer
    has one that the reader has not, or the other way round.
    """

    reader: str
    writers: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    quarantined: tuple[str, ...] = ()
    message: str = ""

    def all_of(self, schema_type: str) -> ReadWith:
        """Return a copy whose texts are of ``schema_type``."""
        types = {} if schema_type == AVRO else dict.fromkeys(self.texts, schema_type)
        return replace(self, types=types)

    def type_of(self, key: str) -> str:
        """Return the registry's name for the type of the schema ``key``, whose text is here."""
        return self.types.get(key, AVRO)


@dataclass(frozen=True)
class HeldSchema:
    """Place of a text in the ledger: the ``version`` of the entry, and the text's :func:`digest`:
    a registry that has another one under the same key is not the one that was read with. ``type``
    is what a registry calls its kind.
    """

    version: int
    digest: str
    type: str = AVRO


@dataclass(frozen=True)
class KnownSchemas:
    """All schemas that the entries below one were read with, and those that were last: writers'
    (``last``) and the reader's.
    """

    held: Mapping[str, HeldSchema] = field(default_factory=dict)
    last: tuple[str, ...] = ()
    reader: str = ""

    def after(self, version: int, read: ReadWith | None) -> KnownSchemas:
        """Return the schemas known after the entry ``version``, which was ``read`` with these."""
        if read is None:
            return self
        new = {
            key: HeldSchema(version, digest(text), read.type_of(key))
            for key, text in read.texts.items()
        }
        return KnownSchemas(
            {**self.held, **new}, read.writers or self.last, read.reader or self.reader
        )

    def held_below(self, version: int) -> list[str]:
        """Return the keys of schemas whose texts are in entries below ``version``."""
        return [key for key, held in self.held.items() if held.version < version]

    def text(self, pipeline: str, key: str, read_at: Callable[[int], ReadWith | None]) -> str:
        """Return the text of the schema ``key`` from the ledger of ``pipeline``; ``read_at`` gives
        the schemas of the entry at a version.

        Raises:
            LedgerDamagedError: the ledger does not hold it, or holds another text.
        """
        held = self.held[key]
        read = read_at(held.version)
        text = read.texts.get(key) if read else None
        if text is None or digest(text) != held.digest:
            damage = f"does not hold the schema {key} that was read with"
            raise LedgerDamagedError(pipeline, held.version, damage)
        return text

    def with_texts(self, texts: Mapping[str, str]) -> ReadWith | None:
        """Return the schemas of an entry that only holds ``texts``; None without texts."""
        types = {key: self.held[key].type for key in texts if self.held[key].type != AVRO}
        return ReadWith(self.reader, self.last, texts=texts, types=types) if texts else None

    def only(self, schema_type: str) -> KnownSchemas:
        """Return a copy without the last schemas of another type, after a change of format."""
        last = tuple(key for key in self.last if self.held[key].type == schema_type)
        same = self.reader and self.held[self.reader].type == schema_type
        return replace(self, last=last, reader=self.reader if same else "")


@dataclass(frozen=True)
class WrittenWith:
    """Columns and schemas that the rows of one entry were written with.

    ``since`` is the version of the entry that was the first to be written with these ``columns``,
    each with its type as the sink says it; only that one has them. ``registered`` are the keys of
    schemas in a registry that records of a topic were written with, by the part of a record.
    """

    since: int
    columns: Mapping[str, str] = field(default_factory=dict)
    registered: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class LastWritten:
    """The digest of the newest columns, and the version ``since`` which rows have them."""

    since: int
    digest: str

    @classmethod
    def after(
        cls, last: LastWritten | None, version: int, written: WrittenWith | None
    ) -> LastWritten | None:
        """Return the last columns after the entry ``version``, which was ``written`` with these."""
        if written is None or not written.columns:
            return last
        return cls(version, _digest_of(written.columns))


def written_with(
    last: LastWritten | None,
    version: int,
    columns: Mapping[str, str],
    registered: Mapping[str, str],
) -> WrittenWith:
    """Return the columns of the entry ``version``, in full only if they differ from ``last``."""
    if last is not None and last.digest == _digest_of(columns):
        return WrittenWith(last.since, registered=registered)
    return WrittenWith(version, columns, registered)


def _digest_of(columns: Mapping[str, str]) -> str:
    return digest(json.dumps(dict(columns)))


#: Mark in the key of a derived schema, which no registry has.
_DERIVED = "~"


def made_key(of: str, text: str) -> str:
    """Return the key of a schema that a policy of change derived from the schema ``of``."""
    return f"{of.partition(_DERIVED)[0]}{_DERIVED}{digest(text)}"


def is_made(key: str) -> bool:
    """True if the schema was derived, so that no registry has it."""
    return _DERIVED in key


def digest(text: str) -> str:
    """Return sixteen hexadecimal digits of a schema, independent of the layout of its JSON."""
    return hashlib.sha256(canonical(text).encode()).hexdigest()[:_DIGITS]


def canonical(text: str) -> str:
    """Return the schema in one line, keys in order."""
    return json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
