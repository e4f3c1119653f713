"""What must be in a table, told by the history alone: nothing here knows the product.

One record makes one row. Whatever was killed, an append table holds of every Kafka partition the
records from its start up to some offset, each once, with the values that were written; a
checkpoint is there with all of its rows or with none; and what was there stays, unless somebody
asked to go back. A table of the newest row of each key holds for a key one of its records, and
never an older one than before. After an orderly run everything written before it began is there.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Fault(StrEnum):
    """How a table may differ from what should be there."""

    LOST = "lost"
    DOUBLED = "doubled"
    WRONG = "wrong"


class Finding(NamedTuple):
    """``count`` records or rows that are not as they should be."""

    fault: Fault
    times: int
    text: str


class Record(NamedTuple):
    """What a Kafka record says."""

    id: int
    key: str
    name: str


class Row(NamedTuple):
    """What a table says: where it came from, the record, and the revision of the transform."""

    checkpoint: int
    partition: int
    offset: int
    id: int
    key: str
    name: str
    rev: int

    @property
    def record(self) -> Record:
        return Record(self.id, self.key, self.name)


#: By Kafka partition: the offset after the last one.
Ends = Mapping[int, int]


@dataclass
class Topic:
    """Every record that a broker acknowledged."""

    records: dict[tuple[int, int], Record] = field(default_factory=dict)

    def ends(self) -> Ends:
        """The offset after the last record of each partition."""
        ends: dict[int, int] = {}
        for partition, offset in self.records:
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return ends


def ends_of(rows: Iterable[Row], upto: int | None = None) -> Ends:
    """Where the rows end, those of checkpoints up to ``upto``."""
    ends: dict[int, int] = {}
    for row in rows:
        if upto is None or row.checkpoint <= upto:
            ends[row.partition] = max(ends.get(row.partition, 0), row.offset + 1)
    return ends


class Judge:
    """Of one table. ``starts`` is where a fork begins; elsewhere a partition begins at 0."""

    def __init__(self, topic: Topic, starts: Ends | None = None, *, whole: bool = True) -> None:
        self._topic = topic
        self._starts = dict(starts or {})
        #: whether a checkpoint becomes visible at one moment to a reader of several partitions
        self._whole = whole
        self._floor: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._falling: dict[int, int] | None = None
        self.rows: Sequence[Row] = ()

    def may_fall(self, to: int) -> None:
        """A rewind to checkpoint ``to`` was asked for: rows of later ones may go, until
        :meth:`settled`.
        """
        at = ends_of(self.rows, to)
        floor = self._floor if self._falling is None else self._falling
        self._falling = {p: min(end, at.get(p, self._start(p))) for p, end in floor.items()}

    def settled(self) -> None:
        """Nothing that was asked for earlier can still land."""
        if self._falling is not None:
            self._falling = None
            self._floor = dict(ends_of(self.rows))

    def look(self, rows: Sequence[Row], *, at_least: Ends | None = None) -> list[Finding]:
        """What is wrong with what a reader sees now. ``at_least``: what an orderly run that ended
        found written when it began.
        """
        self.rows = rows
        findings = [*self._twice(), *self._unlike(), *self._holes(), *self._parts()]
        floor = self._floor if self._falling is None else self._falling
        done = at_least or {}
        wanted = {p: max(floor.get(p, 0), done.get(p, 0)) for p in {*floor, *done}}
        findings += self._short(wanted, "that were there before, or that a run said it published")
        ends = ends_of(rows)
        if self._falling is None:
            self._floor = {p: max(ends.get(p, 0), n) for p, n in {**ends, **self._floor}.items()}
        else:
            self._falling = {p: min(n, ends.get(p, 0)) for p, n in self._falling.items()}
        return findings

    def rewound(self, before: Sequence[Row], to: int) -> list[Finding]:
        """What is wrong after a rewind to ``to`` that succeeded; ``before`` was seen last."""
        later = sum(row.checkpoint > to for row in self.rows)
        kept = {(row.partition, row.offset) for row in self.rows}
        gone = sum(
            (row.partition, row.offset) not in kept for row in before if row.checkpoint <= to
        )
        found = []
        if later:
            found.append(Finding(Fault.WRONG, later, f"rows later than checkpoint {to}"))
        if gone:
            found.append(Finding(Fault.LOST, gone, f"rows that a rewind to {to} spares"))
        return found

    def replayed(self, checkpoints: Iterable[int], rev: int) -> list[Finding]:
        """What is wrong after a replay by revision ``rev`` that said it was done."""
        asked = {*checkpoints}
        stale = sum(row.checkpoint in asked and row.rev != rev for row in self.rows)
        text = f"rows of replayed checkpoints that are not of revision {rev}"
        return [Finding(Fault.WRONG, stale, text)] if stale else []

    def exact(self, rows: Sequence[Row]) -> list[Finding]:
        """What is wrong when everything was read: the sets are compared."""
        return self.look(rows, at_least=self._topic.ends())

    # ---- what may be wrong ----

    def _start(self, partition: int) -> int:
        return self._starts.get(partition, 0)

    def _twice(self) -> list[Finding]:
        seen = Counter((row.partition, row.offset) for row in self.rows)
        more = {place: n for place, n in seen.items() if n > 1}
        return [Finding(Fault.DOUBLED, len(more), f"e.g. {_first(more)}")] if more else []

    def _unlike(self) -> list[Finding]:
        known = self._topic.records
        odd = [
            row
            for row in self.rows
            if known.get((row.partition, row.offset)) != row.record
            or row.offset < self._start(row.partition)
        ]
        return [Finding(Fault.WRONG, len(odd), f"rows of no record, e.g. {odd[0]}")] if odd else []

    def _holes(self) -> list[Finding]:
        there: dict[int, set[int]] = defaultdict(set)
        for row in self.rows:
            there[row.partition].add(row.offset)
        missing = [
            (partition, offset)
            for partition, offsets in there.items()
            for offset in range(self._start(partition), max(offsets))
            if offset not in offsets
        ]
        text = "records with later ones of their partition there, e.g. "
        return [Finding(Fault.LOST, len(missing), f"{text}{_first(missing)}")] if missing else []

    def _short(self, floor: Ends, what: str) -> list[Finding]:
        ends = ends_of(self.rows)
        missing = {
            partition: end - max(ends.get(partition, 0), self._start(partition))
            for partition, end in floor.items()
            if end > max(ends.get(partition, 0), self._start(partition))
        }
        count = sum(missing.values())
        return [Finding(Fault.LOST, count, f"records {what}, by partition: {missing}")] * bool(
            count
        )

    def _parts(self) -> list[Finding]:
        sizes = Counter(row.checkpoint for row in self.rows)
        revs: dict[int, set[int]] = defaultdict(set)
        for row in self.rows:
            revs[row.checkpoint].add(row.rev)
        torn = sorted(c for c, found in revs.items() if len(found) > 1)
        if self._whole:
            torn += [c for c, n in sizes.items() if self._sizes.get(c, n) != n]
            self._sizes.update(sizes)
        text = f"checkpoints of which a part was visible: {torn[:5]}"
        return [Finding(Fault.WRONG, len(torn), text)] if torn else []


class NewestByKey(Judge):
    """Of a table that keeps the newest row of each key. A key stays in its Kafka partition."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(topic)
        self._newest: dict[str, int] = {}

    def _twice(self) -> list[Finding]:
        seen = Counter(row.key for row in self.rows)
        more = {key: n for key, n in seen.items() if n > 1}
        return [Finding(Fault.DOUBLED, len(more), f"keys, e.g. {_first(more)}")] if more else []

    def _holes(self) -> list[Finding]:
        now = {row.key: row.offset for row in self.rows}
        older = [key for key, offset in self._newest.items() if now.get(key, -1) < offset]
        self._newest.update({key: max(self._newest.get(key, 0), now[key]) for key in now})
        text = f"keys that are gone or older than before, e.g. {older[:1]}"
        return [Finding(Fault.LOST, len(older), text)] if older else []

    def _parts(self) -> list[Finding]:
        return []  # a checkpoint's rows are overwritten one by one by later ones

    def _short(self, floor: Ends, what: str) -> list[Finding]:
        newest: dict[str, int] = {}
        for (partition, offset), record in self._topic.records.items():
            if offset < floor.get(partition, 0):
                newest[record.key] = max(newest.get(record.key, 0), offset)
        now = {row.key: row.offset for row in self.rows}
        behind = [key for key, offset in newest.items() if now.get(key, -1) < offset]
        text = f"keys without records {what}, e.g. {behind[:1]}"
        return [Finding(Fault.LOST, len(behind), text)] if behind else []


def _first(found: Iterable[object]) -> object:
    return next(iter(found))
