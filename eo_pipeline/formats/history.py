"""Schema history of a pipeline: schemas that records were read with, columns of written rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eo_pipeline.formats.kinds import kind_of
from eo_pipeline.formats.parts import KEY, VALUE, Part
from eo_pipeline.formats.schema_diff import DecidedChange
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.schemas import ReadWith


@dataclass(frozen=True)
class NextReader:
    """The reader's schema of the next run for one ``part`` of records: ``schema`` of ``subject``.

    ``before``: the previous one; ``new``, ``gone``: paths of the fields that differ; ``decided``:
    the changes with their policies, by which columns may not follow them.
    """

    subject: str
    schema: str
    before: str | None
    new: tuple[str, ...]
    gone: tuple[str, ...]
    decided: tuple[DecidedChange, ...] = ()
    part: Part = VALUE

    def __str__(self) -> str:
        subject = "the key's columns" if self.part == KEY else "the columns"
        text = f"{subject} are those of {self.subject}, schema {self.schema}"
        if self.before in (None, self.schema):
            return text
        text += f"; it was {self.before} before ({_changes(self.new, self.gone)})"
        return "; ".join([text, *map(str, self.decided)])

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "subject": self.subject,
            "schema": self.schema,
            "before": self.before,
            "new_fields": list(self.new),
            "left_out": list(self.gone),
            "changes": [decided.to_json() for decided in self.decided],
        }


def next_columns(readers: Iterable[NextReader]) -> dict[str, Any]:
    """Return plain values: ``columns`` and ``key_columns``, if present."""
    names = {VALUE: "columns", KEY: "key_columns"}
    return {names[reader.part]: reader.to_json() for reader in readers}


@dataclass(frozen=True)
class ReaderChange:
    """The first ``entry`` that was read as ``schema``. ``new``, ``gone``: paths of the fields that
    differ from the schema before; None for the very first.
    """

    entry: LedgerEntry
    schema: str
    text: str
    new: tuple[str, ...] | None
    gone: tuple[str, ...] | None

    def __str__(self) -> str:
        return "" if self.new is None else _changes(self.new, self.gone or ())

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        at = self.entry.committed_at
        return {
            "version": self.entry.version,
            "committed_at": at.isoformat() if at else None,
            "schema": self.schema,
            "new_fields": None if self.new is None else list(self.new),
            "left_out": None if self.gone is None else list(self.gone),
            "text": self.text,
        }


@dataclass(frozen=True)
class WrittenChange:
    """The first ``entry`` whose rows were written as ``columns``, with ``registered`` schemas.
    ``before``: the previous columns, None for the very first.
    """

    entry: LedgerEntry
    columns: Mapping[str, str]
    registered: Mapping[str, str]
    before: Mapping[str, str] | None

    @property
    def schema(self) -> str:
        """Ids of the registered schemas, if any."""
        return ", ".join(f"{part} {key}" for part, key in sorted(self.registered.items()))

    @property
    def new(self) -> list[str]:
        return [name for name in self.columns if name not in (self.before or {})]

    @property
    def gone(self) -> list[str]:
        return [name for name in self.before or {} if name not in self.columns]

    @property
    def other_types(self) -> dict[str, tuple[str, str]]:
        """Old and new type of the columns whose type changed."""
        both = [name for name in self.before or {} if name in self.columns]
        types = {name: ((self.before or {})[name], self.columns[name]) for name in both}
        return {name: kinds for name, kinds in types.items() if kinds[0] != kinds[1]}

    def __str__(self) -> str:
        if self.before is None:
            return ""
        types = [f"{name} from {was} to {now}" for name, (was, now) in self.other_types.items()]
        if types and not (self.new or self.gone):
            return "; ".join(types)
        return "; ".join([_changes(self.new, self.gone, "the same columns"), *types])

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        at = self.entry.committed_at
        return {
            "version": self.entry.version,
            "committed_at": at.isoformat() if at else None,
            "columns": dict(self.columns),
            "registered": dict(self.registered),
            "new_columns": None if self.before is None else self.new,
            "left_out": None if self.before is None else self.gone,
            "other_types": {name: list(types) for name, types in self.other_types.items()},
        }


def written_changes(history: Sequence[LedgerEntry]) -> Iterator[WrittenChange]:
    """Yield the entries whose rows were written as other columns than those before, or with other
    schemas of a registry. ``history``: all entries that the ledger keeps, oldest first.
    """
    columns = _columns(history)
    before: WrittenChange | None = None
    for entry in history:
        written = entry.counts.written
        if written is None or entry.operation is Operation.PRUNE:
            continue
        now = columns.get(written.since)
        if now is None:
            continue  # the entries that had them were pruned
        if before is None or (now, written.registered) != (before.columns, before.registered):
            was = before.columns if before else None
            before = WrittenChange(entry, now, written.registered, was)
            yield before


def _columns(history: Sequence[LedgerEntry]) -> dict[int, Mapping[str, str]]:
    """Return the columns by the version since which rows were written with them. The first entry
    after a prune carries those of an entry below: later entries refer to it by either version.
    """
    columns: dict[int, Mapping[str, str]] = {}
    for entry in history:
        if (written := entry.counts.written) and written.columns:
            columns[written.since] = columns[entry.version] = written.columns
    return columns


def _changes(new: Iterable[str], gone: Iterable[str], otherwise: str = "the same fields") -> str:
    """Return a text like ``new: a, b; no longer: c``."""
    changes = [f"new: {', '.join(new)}"] if new else []
    changes += [f"no longer: {', '.join(gone)}"] if gone else []
    return "; ".join(changes) or otherwise


def reader_changes(history: Sequence[LedgerEntry], part: Part = VALUE) -> Iterator[ReaderChange]:
    """Yield the entries that read this ``part`` of records as another schema than those before.
    Replays, which read as their target did, are no change. ``history``: all entries that the ledger
    keeps, oldest first.
    """
    texts, types = dict[str, str](), dict[str, str]()
    # before the loop: the first entry after a prune carries the texts of entries below it
    for read in (_read(entry, part) for entry in history):
        texts |= read.texts if read else {}
        types |= {key: read.type_of(key) for key in read.texts} if read else {}
    before = None
    for entry in history:
        read = _read(entry, part)
        if read is None:
            continue
        if not entry.ranges or entry.target is not None or read.reader == before:
            continue
        schema_type = types[read.reader]
        # schemas of another type, which is another format, cannot be compared
        old = texts.get(before or "") if types.get(before or "") == schema_type else None
        text, left_out = texts[read.reader], kind_of(schema_type, read.message).left_out
        new = None if old is None else tuple(left_out(text, old))
        gone = None if old is None else tuple(left_out(old, text))
        yield ReaderChange(entry, read.reader, text, new, gone)
        before = read.reader


def _read(entry: LedgerEntry, part: Part) -> ReadWith | None:
    return entry.counts.key_schemas if part == KEY else entry.counts.schemas
