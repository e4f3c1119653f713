"""Schema history of a pipeline: the registry schemas of its columns with their changes, and the
columns that its rows were written as.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eo_pipeline.formats.kinds import kind_of
from eo_pipeline.formats.parts import KEY, VALUE, Part
from eo_pipeline.formats.schema_diff import Decided
from eo_pipeline.ledger.entry import LedgerEntry, Operation
from eo_pipeline.ledger.schemas import ReadWith


@dataclass(frozen=True)
class NextReader:
    """The ``schema`` of ``subject`` that the next run's columns are of, the one ``before``, and the
    paths of fields that are ``new`` in it and ``gone`` from it; what is ``decided`` about each
    change, which may be that the columns do not follow it. ``part`` of a record they are of.
    """

    subject: str
    schema: str
    before: str | None
    new: tuple[str, ...]
    gone: tuple[str, ...]
    decided: tuple[Decided, ...] = ()
    part: Part = VALUE

    def __str__(self) -> str:
        whose = "the key's columns" if self.part == KEY else "the columns"
        said = f"{whose} are those of {self.subject}, schema {self.schema}"
        if self.before in (None, self.schema):
            return said
        said += f"; it was {self.before} before ({what_changed(self.new, self.gone)})"
        return "; ".join([said, *map(str, self.decided)])

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "subject": self.subject,
            "schema": self.schema,
            "before": self.before,
            "new_fields": list(self.new),
            "left_out": list(self.gone),
            "changes": [each.to_json() for each in self.decided],
        }


def next_columns(readers: Iterable[NextReader]) -> dict[str, Any]:
    """Plain values: ``columns`` and ``key_columns``, each if it is there."""
    names = {VALUE: "columns", KEY: "key_columns"}
    return {names[each.part]: each.to_json() for each in readers}


@dataclass(frozen=True)
class ReaderChange:
    """``entry`` is the first that was read as ``schema``: ``new`` and ``gone`` are paths of fields
    by which it differs from the one before; None for the very first.
    """

    entry: LedgerEntry
    schema: str
    text: str
    new: tuple[str, ...] | None
    gone: tuple[str, ...] | None

    def __str__(self) -> str:
        return "" if self.new is None else what_changed(self.new, self.gone or ())

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
    """``entry`` is the first whose rows were written as ``columns``, with ``registered`` schemas;
    ``before`` are the columns until then, None for the very first.
    """

    entry: LedgerEntry
    columns: Mapping[str, str]
    registered: Mapping[str, str]
    before: Mapping[str, str] | None

    @property
    def schema(self) -> str:
        """The registry's numbers, if it has any."""
        return ", ".join(f"{part} {key}" for part, key in sorted(self.registered.items()))

    @property
    def new(self) -> list[str]:
        return [name for name in self.columns if name not in (self.before or {})]

    @property
    def gone(self) -> list[str]:
        return [name for name in self.before or {} if name not in self.columns]

    @property
    def other_types(self) -> dict[str, tuple[str, str]]:
        """Before and now."""
        both = [name for name in self.before or {} if name in self.columns]
        types = {name: ((self.before or {})[name], self.columns[name]) for name in both}
        return {name: kinds for name, kinds in types.items() if kinds[0] != kinds[1]}

    def __str__(self) -> str:
        if self.before is None:
            return ""
        types = [f"{name} from {was} to {now}" for name, (was, now) in self.other_types.items()]
        if types and not (self.new or self.gone):
            return "; ".join(types)
        return "; ".join([what_changed(self.new, self.gone, "the same columns"), *types])

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
            "other_types": {name: list(each) for name, each in self.other_types.items()},
        }


def written_changes(history: Sequence[LedgerEntry]) -> Iterator[WrittenChange]:
    """The entries of a ledger, all that it keeps, oldest first, whose rows were written as other
    columns than those before, or with other schemas of a registry.
    """
    columns = _columns(history)
    before: WrittenChange | None = None
    for entry in history:
        written = entry.counts.written
        if written is None or entry.operation is Operation.PRUNE:
            continue
        now = columns.get(written.since)
        if now is None:
            continue  # those that had them were pruned
        if before is None or (now, written.registered) != (before.columns, before.registered):
            was = before.columns if before else None
            before = WrittenChange(entry, now, written.registered, was)
            yield before


def _columns(history: Sequence[LedgerEntry]) -> dict[int, Mapping[str, str]]:
    """By the version since which rows were written with them. The entry of a floor has those of one
    below it, for the entries before itself and, under its own version, for those behind it.
    """
    found: dict[int, Mapping[str, str]] = {}
    for entry in history:
        if (written := entry.counts.written) and written.columns:
            found[written.since] = found[entry.version] = written.columns
    return found


def what_changed(
    new: Iterable[str], gone: Iterable[str], otherwise: str = "the same fields"
) -> str:
    """``new: a, b; no longer: c``."""
    changes = [f"new: {', '.join(new)}"] if new else []
    changes += [f"no longer: {', '.join(gone)}"] if gone else []
    return "; ".join(changes) or otherwise


def reader_changes(history: Sequence[LedgerEntry], part: Part = VALUE) -> Iterator[ReaderChange]:
    """The entries of a ledger, all that it keeps, oldest first, of which that ``part`` of records
    was read as another schema than those before; what a replay reads as then is no change.
    """
    texts, types = dict[str, str](), dict[str, str]()
    # not as they come: the entry of a floor has those of entries below it
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
        # of another type: another format, of which nothing can be compared
        old = texts.get(before or "") if types.get(before or "") == schema_type else None
        text, left_out = texts[read.reader], kind_of(schema_type, read.message).left_out
        new = None if old is None else tuple(left_out(text, old))
        gone = None if old is None else tuple(left_out(old, text))
        yield ReaderChange(entry, read.reader, text, new, gone)
        before = read.reader


def _read(entry: LedgerEntry, part: Part) -> ReadWith | None:
    return entry.counts.key_schemas if part == KEY else entry.counts.schemas
