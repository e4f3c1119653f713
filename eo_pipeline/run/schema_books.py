"""The schemas of values and of keys: a book for each part that the registry has the schemas of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eo_pipeline.ledger.branch import Checkpoint
from eo_pipeline.ledger.entry import Counts, LedgerEntry
from eo_pipeline.run.counting import Seen
from eo_pipeline.run.readers import NextReader
from eo_pipeline.run.schemas import SchemaBook
from eo_pipeline.source.config import KafkaSource
from eo_pipeline.source.decoded import Decoded
from eo_pipeline.source.parts import KEY, VALUE
from eo_pipeline.source.wire import ReadBy


@dataclass(frozen=True)
class SchemaBooks:
    """What :class:`SchemaBook` tells, of both parts; its errors too."""

    value: SchemaBook | None = None
    key: SchemaBook | None = None

    @classmethod
    def of_source(
        cls, pipeline: str, source: KafkaSource, entry_at: Callable[[int], LedgerEntry | None]
    ) -> SchemaBooks | None:
        """None if no registry has the schemas of either."""
        if source.registry is None:
            return None
        books = {
            part.name: SchemaBook(pipeline, source, source.registry, entry_at, part)
            for part in (VALUE, KEY)
            if source.by_registry(part)
        }
        return cls(**books)

    def of(self, entry: LedgerEntry) -> ReadBy:
        """What to read the records of ``entry`` with."""
        return ReadBy(
            self.value.of(entry) if self.value else None, self.key.of(entry) if self.key else None
        )

    def met(self, entry: LedgerEntry, decoded: Decoded, seen: Seen) -> ReadBy:
        """What ``decoded`` was read with, and what was found besides."""
        return ReadBy(
            self.value.met(entry, decoded, seen) if self.value else None,
            self.key.met(entry, decoded, seen) if self.key else None,
        )

    def for_audit(
        self, head: LedgerEntry, found: Sequence[Checkpoint]
    ) -> Callable[[int | None], ReadBy]:
        """What to read the records of the checkpoints ``found`` with."""
        value = self.value.for_audit(head, found) if self.value else None
        key = self.key.for_audit(head, found) if self.key else None
        return lambda n: ReadBy(value(n) if value else None, key(n) if key else None)

    def carried(self, entry: LedgerEntry, head: LedgerEntry) -> Counts:
        """All that is known at ``entry``, for a ledger that begins there; ``head`` is that of its
        own ledger.
        """
        return Counts(
            schemas=self.value.carried(entry, head) if self.value else None,
            key_schemas=self.key.carried(entry, head) if self.key else None,
        )

    def next_readers(self, head: LedgerEntry | None) -> tuple[NextReader, ...]:
        """Which schemas the next run's columns are of, the value's before the key's."""
        return tuple(book.next_reader(head) for book in (self.value, self.key) if book)


def read_with(read: ReadBy | None, seen: Mapping[str, Any], entry: LedgerEntry) -> dict[str, Any]:
    """What of ``read`` was used, as counts have it."""
    known = entry.identity
    value = read.value.read_with(seen, known.schemas.held) if read and read.value else None
    key = read.key.read_with(seen, known.key_schemas.held) if read and read.key else None
    return {"schemas": value, "key_schemas": key}
