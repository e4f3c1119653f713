"""What a lake table holds, as plainly as can be: rows by their place, checkpoints with their ends.

A value stays what its record says. How a row looks follows from the table's columns of now, so that
an operation has to say only which rows come and go, and which columns there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, TypeVar

from tests.lakes.columns import HIVE_NULL, LONG, Columns, Kind, array_of, struct_of

CHECKPOINT, TOPIC, PARTITION, OFFSET = "_eo_checkpoint", "_eo_topic", "_eo_partition", "_eo_offset"
OWN = (CHECKPOINT, TOPIC, PARTITION, OFFSET)

T = TypeVar("T")

Key = tuple[Any, ...]
#: A whole table: each row's values by column, in one form, and how often there is such a row.
Rows = Counter[tuple[tuple[str, Any], ...]]


@dataclass(frozen=True)
class Record:
    """In Kafka."""

    partition: int
    offset: int
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """In the table; of somebody else's there is no checkpoint, and no place in Kafka."""

    values: Mapping[str, Any]
    checkpoint: int | None = None
    partition: int | None = None
    offset: int | None = None


@dataclass(frozen=True)
class State:
    """What a table held at some time."""

    rows: dict[Key, Row]
    columns: dict[str, Kind]
    #: of the ledger
    head: int

    def renamed(self, name: str, to: str | None) -> State:
        """With that column under another name, or without it."""
        rows = {k: replace(r, values=_renamed(r.values, name, to)) for k, r in self.rows.items()}
        return State(rows, _renamed(self.columns, name, to), self.head)


@dataclass(frozen=True)
class Entry:
    """Of the ledger: ``starts`` and ``ends`` are offsets by partition."""

    version: int
    starts: Mapping[int, int]
    ends: Mapping[int, int]
    #: what a rewind of an upserted table brings back
    state: State
    #: whether it read records, which a replay reads again
    reads: bool = False


@dataclass
class Model:
    """One pipeline and its table."""

    source: Columns
    partitions: int
    partition_by: tuple[str, ...] = ()
    key: tuple[str, ...] = ()
    sequence_by: tuple[str, ...] = ()
    #: columns of which not every value can be kept: each makes a folder's name
    folders: frozenset[str] = frozenset()
    #: of the table; None: there is none yet
    columns: dict[str, Kind] | None = None
    rows: dict[Key, Row] = field(default_factory=dict)
    records: list[Record] = field(default_factory=list)
    #: of all live versions, oldest first
    live: list[Entry] = field(default_factory=list)
    dead: list[int] = field(default_factory=list)
    #: (checkpoint, partition, offset) of records that were set aside
    letters: set[tuple[int, int, int]] = field(default_factory=set)
    head: int = -1
    #: what was done to the files, by which some readers go
    traits: set[str] = field(default_factory=set)

    @property
    def ends(self) -> dict[int, int]:
        """Where the next run begins."""
        none = dict.fromkeys(range(self.partitions), 0)
        return {**none, **(self.live[-1].ends if self.live else {})}

    def written(self) -> dict[int, int]:
        """Where each partition ends in Kafka."""
        counts = Counter(record.partition for record in self.records)
        return {number: counts[number] for number in range(self.partitions)}

    def pending(self) -> list[Record]:
        ends = self.ends
        return [each for each in self.records if each.offset >= ends[each.partition]]

    # what a pipeline does

    def started(self) -> None:
        """The first entry of a ledger, before any row."""
        if self.head < 0:
            self._enter(self.ends, self.ends)

    def run(self, most: int | None = None) -> None:
        """All that is pending becomes one checkpoint; of one partition, one for every ``most``."""
        self.started()
        while read := self.pending()[:most]:
            starts = self.ends
            read_to = Counter(record.partition for record in read)
            ends = {number: start + read_to[number] for number, start in starts.items()}
            self._take(read, self.head + 1)
            self._enter(starts, ends, reads=True)

    def rewind(self, to: int) -> None:
        """Rows of later checkpoints leave; of an upserted table all is as it was then."""
        kept = [entry for entry in self.live if entry.version <= to]
        self.dead += [entry.version for entry in self.live if entry.version > to]
        if self.key:
            state = kept[-1].state
            self.rows = dict(state.rows)
            self.columns = dict(state.columns) if state.columns else self.columns
        else:
            self.rows = {k: r for k, r in self.rows.items() if (r.checkpoint or 0) <= to}
        self.letters = {each for each in self.letters if each[0] <= to}
        ends = kept[-1].ends
        self.live = kept
        self._enter(ends, ends)

    def replay(self, version: int) -> None:
        """The records of one checkpoint are read again, as the schema is now."""
        (entry,) = [each for each in self.live if each.version == version]
        self.rows = {k: r for k, r in self.rows.items() if r.checkpoint != version}
        self.letters = {each for each in self.letters if each[0] != version}
        self._take(self.records_of(entry), version)
        self._enter(self.ends, self.ends)

    def reset(self) -> None:
        self.columns, self.rows, self.live, self.dead = None, {}, [], []
        self.letters, self.head = set(), -1

    def records_of(self, entry: Entry) -> list[Record]:
        return [
            each
            for each in self.records
            if entry.starts[each.partition] <= each.offset < entry.ends[each.partition]
        ]

    def replayable(self) -> list[int]:
        return [entry.version for entry in self.live if entry.reads]

    def _enter(
        self, starts: Mapping[int, int], ends: Mapping[int, int], *, reads: bool = False
    ) -> None:
        self.head += 1
        self.live.append(Entry(self.head, starts, ends, self.state(), reads))

    def state(self) -> State:
        return State(dict(self.rows), dict(self.columns or {}), self.head)

    def _take(self, read: list[Record], checkpoint: int) -> None:
        """The good ones become rows of ``checkpoint``, the others are set aside; the columns come
        with either.
        """
        made = [(record, self.row(record, checkpoint)) for record in read]
        self.letters |= {(checkpoint, r.partition, r.offset) for r, row in made if row is None}
        if read:
            self._follow()
        for _, row in made:
            if row is not None:
                self._put(row)

    def row(self, record: Record, checkpoint: int) -> Row | None:
        """None: it is a bad record."""
        values = {n: c.kind.fitted(record.values.get(n)) for n, c in self.source.items()}
        lacks = any(c.required and values[n] is None for n, c in self.source.items())
        lacks |= any(values.get(name) is None for name in (*self.key, *self.sequence_by))
        if lacks or not self.has_folder(values):
            return None
        return Row(values, checkpoint, record.partition, record.offset)

    def has_folder(self, values: Mapping[str, Any]) -> bool:
        return all(makes_folder(values.get(name)) for name in self.folders)

    def _put(self, row: Row) -> None:
        if not self.key:
            self.rows[(row.checkpoint, row.partition, row.offset)] = row
            return
        key = tuple(row.values[name] for name in self.key)
        old = self.rows.get(key)
        if old is None:
            self.rows[key] = row
        elif None in self._age(old) or self._age(row) >= self._age(old):
            # somebody else's row that has nothing to be sequenced by gives way, and
            # what the rows no longer have stays as it was
            self.rows[key] = replace(row, values={**old.values, **row.values})

    def _age(self, row: Row) -> Key:
        return tuple(row.values.get(name) for name in self.sequence_by)

    def _follow(self) -> None:
        """The table gets the columns of the source."""
        known = self.columns or {}
        wider = {name: column.kind for name, column in self.source.items()}
        self.columns = {**known, **{n: merged(known.get(n, k), k) for n, k in wider.items()}}

    # what others do

    def update(self, chosen: Mapping[Key, Row], **values: Any) -> None:
        self.rows |= {k: replace(r, values={**r.values, **values}) for k, r in chosen.items()}

    def delete(self, chosen: Mapping[Key, Row]) -> None:
        self.rows = {k: r for k, r in self.rows.items() if k not in chosen}

    def put_back(self, state: State, *, columns: bool) -> None:
        self.rows = dict(state.rows)
        if columns:
            self.columns = dict(state.columns)

    def rename(self, name: str, to: str | None) -> None:
        """A column of the table; None: it goes, with its values."""
        held = self.state().renamed(name, to)
        self.rows, self.columns = held.rows, held.columns

    # what a reader must find

    def expected(self, topic: str, without: frozenset[str] = frozenset()) -> Rows:
        """Every row, but for the columns ``without``."""
        assert self.columns is not None
        kinds = {n: k for n, k in self.columns.items() if n not in without}
        return Counter(tuple(self._seen(row, kinds, topic, without)) for row in self.rows.values())

    def _seen(
        self, row: Row, kinds: Mapping[str, Kind], topic: str, without: frozenset[str]
    ) -> Iterator[tuple[str, Any]]:
        own = {
            CHECKPOINT: row.checkpoint,
            TOPIC: None if row.offset is None else topic,
            PARTITION: row.partition,
            OFFSET: row.offset,
        }
        for name in sorted({*kinds, *OWN} - without):
            if name in own:
                yield name, own[name]
            else:
                yield name, kinds[name].plain(kinds[name].fitted(row.values.get(name)))


def makes_folder(value: Any) -> bool:
    """Of a partition of Delta's; see docs/sinks/delta.md."""
    if isinstance(value, Decimal):
        return value >= 0
    return value not in ("", HIVE_NULL, LONG)


def merged(known: Kind, result: Kind) -> Kind:
    """The type of a column that held ``known`` and takes ``result`` too: the wider one; of structs
    all fields.
    """
    if known.name == "struct" and result.name == "struct":
        both = {**result.inner, **known.inner}
        inner = {n: merged(k, result.inner.get(n, k)) for n, k in both.items()}
        return struct_of(**inner)
    if known.name == "array" and result.name == "array":
        return array_of(merged(known.inner["item"], result.inner["item"]))
    return result if _width(result) > _width(known) else known


_WIDTHS = ("tinyint", "smallint", "int", "bigint", "float", "double")


def _width(kind: Kind) -> int:
    if kind.name.startswith("decimal"):
        return int(kind.arrow.precision)
    return _WIDTHS.index(kind.name) if kind.name in _WIDTHS else 0


def _renamed(values: Mapping[str, T], name: str, to: str | None) -> dict[str, T]:
    names = {each: to if each == name else each for each in values}
    return {new: values[each] for each, new in names.items() if new is not None}
