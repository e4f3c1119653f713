"""One sequence: a table, its pipeline, and what is done to both, step by step."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from eo_pipeline.errors import EoPipelineError, RefusedError
from tests.lakes.columns import PLAIN, Column, Columns, Kind, draw_kind
from tests.lakes.drivers import Driver
from tests.lakes.lakes import Lake
from tests.lakes.model import Key, Model, Record, Row, State
from tests.lakes.readers import Reader, difference, lists_of_structs, rows_of, unseen

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARTITION_KINDS = {
    "delta": (
        *("boolean", "tinyint", "smallint", "int", "bigint"),
        *("string", "date", "timestamp", "timestamp_ntz", "decimal(10,2)"),
    ),
    "iceberg": (
        *("boolean", "int", "bigint", "string", "date"),
        *("timestamp", "timestamp_ntz", "decimal(10,2)"),
    ),
}
_TIME_TRANSFORMS = ("year", "month", "day", "hour")
KEYS = 5
#: Ids of rows that are somebody else's begin here.
FOREIGN = 1_000_000


class FoundError(Exception):
    """The table, or an answer, is not what it must be; the text begins with what is wrong."""


@dataclass
class Life:
    """A sequence on its way. What is drawn comes from ``chance`` and depends on the model alone."""

    chance: random.Random
    lake: Lake
    model: Model
    driver: Driver
    readers: Sequence[Reader]
    #: a session of Spark's, which works on the table as somebody else does; None: there is none
    spark: Any = None
    #: whether that writes times as INT96, as it does unless it is told
    old_times: bool = False
    #: whether it is laid out by a part of a time, which PyIceberg writes with one package more
    by_time: bool = False
    log: list[str] = field(default_factory=list)
    #: by what the format calls a version of the table: what it held
    states: dict[int, State] = field(default_factory=dict)
    #: heads of the ledger after which others committed what a rewind of upserted rows would undo
    others: list[int] = field(default_factory=list)
    #: the same of older states: a restore leaves out what came after
    others_at: dict[int, list[int]] = field(default_factory=dict)
    #: heads after which files of older states were removed
    vacuumed: list[int] = field(default_factory=list)
    #: whether older snapshots may be gone
    expired: bool = False
    #: names for columns, foreign rows and values; each is given once
    counter: int = 0
    #: how often each operation was done, or refused
    done: dict[str, int] = field(default_factory=dict)

    @property
    def store(self) -> str:
        return self.lake.store

    @property
    def upserts(self) -> bool:
        return bool(self.model.key)

    @property
    def is_odd(self) -> bool:
        """Whether PyIceberg reads a column otherwise than it stands: it then writes it so, too."""
        return self.store == "iceberg" and bool(lists_of_structs(self.model))

    @property
    def may_not_go_back(self) -> bool:
        """Whether rows that leave may share a file with others, which PyIceberg cannot write anew:
        for an odd column, or for a partition by time, which takes one package more.
        """
        return "mixed" in self.model.traits and (self.is_odd or self.by_time)

    def go_back(self, act: Callable[[], Any]) -> bool:
        """Whether it was done; see :attr:`may_not_go_back`."""
        if self.may_not_go_back:
            return self.may_be_refused((RefusedError,), act)
        act()
        return True

    def next(self) -> int:
        self.counter += 1
        return self.counter

    def say(self, text: str) -> None:
        self.log.append(text)

    # records and rows

    def write(self, count: int) -> None:
        """Records with values of the source's columns."""
        ends = self.model.written()
        made = []
        for _ in range(count):
            partition = self.chance.randrange(self.model.partitions)
            made.append(Record(partition, ends[partition], self._values()))
            ends[partition] += 1
        self.model.records += made
        self.driver.write(made)

    def _values(self) -> dict[str, Any]:
        is_first = not self.model.records
        values = {}
        for name, column in self.model.source.items():
            rare = column.required or name in (*self.model.key, *self.model.sequence_by)
            nulls = (0.0 if is_first else 0.04) if rare else 0.15
            values[name] = column.kind.draw(self.chance, nulls=nulls)
        if is_first:  # so that the first run makes a table
            values |= dict.fromkeys(self.model.folders)
        return {**values, "id": len(self.model.records) + self.next() * 1000}

    def draw_kind(self) -> Kind:
        """Of a new column."""
        return drawn_kind(self.chance, self.store)

    def foreign_row(self) -> tuple[Key, Row]:
        assert self.model.columns is not None
        number = FOREIGN + self.next()
        values = {
            name: kind.draw(self.chance, nulls=0.0 if name in self.model.key else 0.15)
            for name, kind in self.model.columns.items()
        }
        if not self.model.has_folder(values):
            values |= dict.fromkeys(self.model.folders)
        return ("foreign", number), Row({**values, "id": number})

    def some_rows(self) -> dict[Key, Row]:
        """About a third, at least one if there are any; all of an id, which is there twice where a
        restore by others brought rows back that a rewind had taken, and a run had read again.
        """
        found = {k: r for k, r in self.model.rows.items() if r.values.get("id") is not None}
        if not found:
            return {}
        chosen = [row for row in found.values() if self.chance.random() < 0.3]
        ids = {row.values["id"] for row in (chosen or [self.chance.choice([*found.values()])])}
        return {k: r for k, r in found.items() if r.values["id"] in ids}

    # what is done, and what has to come of it

    def commit(self) -> None:
        """After what somebody else did, that a rewind of upserted rows would undo."""
        self.others.append(self.model.head)

    def keep_state(self) -> None:
        """What the table holds now, by what the format calls it."""
        if self.model.columns is not None:
            self.states[self.lake.state()] = self.model.state()
            self.others_at[self.lake.state()] = [*self.others]

    def refused(self, errors: tuple[type[EoPipelineError], ...], act: Callable[[], Any]) -> None:
        """It must be, and by one of these."""
        try:
            act()
        except errors as error:
            self.say(f"  refused: {type(error).__name__}")
        except EoPipelineError as error:
            raise FoundError(f"WRONG ERROR {told(error)}, not {named(errors)}") from error
        else:
            raise FoundError(f"NOT REFUSED, by none of {named(errors)}")

    def may_be_refused(
        self, errors: tuple[type[EoPipelineError], ...], act: Callable[[], Any]
    ) -> bool:
        """Whether it was done."""
        try:
            act()
        except errors as error:
            self.say(f"  refused: {type(error).__name__}: {str(error)[:120]}")
            return False
        return True

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.done[name] = self.done.get(name, 0) + 1
        began = time.monotonic()
        try:
            yield
            self.log[-1] += f"   [{time.monotonic() - began:.1f} s]"
        except FoundError:
            raise
        except Exception as error:
            raise FoundError(f"ERROR in {name}: {told(error)}") from error

    def check(self, readers: Sequence[Reader] | None = None) -> None:
        """The table is the model's, from every reader."""
        if self.model.columns is None:
            if self.lake.exists():
                raise FoundError("NOT EMPTY: there is a table, and there should be none")
            return
        for reader in self.readers if readers is None else readers:
            self._compare(reader)

    def _compare(self, reader: Reader) -> None:
        without = unseen(reader.name, self.store, self.model)
        if without is None:
            return
        try:
            table = reader.read(self.lake)
        except Exception as error:
            raise FoundError(f"UNREADABLE by {reader.name}: {told(error)}") from error
        expected = self.model.expected(self.lake.name, without)
        if wrong := difference(expected, rows_of(table, without)):
            raise FoundError(f"WRONG for {reader.name}: {wrong}")

    def check_letters(self) -> None:
        expected = {(partition, offset) for _, partition, offset in self.model.letters}
        if (found := self.driver.letters()) != expected:
            raise FoundError(f"WRONG dead letters: {sorted(found)}, expected {sorted(expected)}")


def named(errors: Collection[type[Exception]]) -> str:
    return ", ".join(error.__name__ for error in errors)


def told(error: BaseException) -> str:
    cause = error.__cause__ or error.__context__
    return f"{type(error).__name__}: {str(error)[:500]}" + (
        f" <- {type(cause).__name__}: {str(cause)[:300]}" if cause else ""
    )


def drawn_kind(chance: random.Random, store: str) -> Kind:
    """Any that the store holds."""
    while True:
        kind = draw_kind(chance)
        if store == "iceberg" or not _maps_ntz(kind):
            return kind


def _maps_ntz(kind: Kind) -> bool:
    within = any(map(_maps_ntz, kind.inner.values()))
    return within or (kind.name == "map" and "timestamp_ntz" in kind.leaves())


def drawn_table(chance: random.Random, store: str) -> tuple[Model, dict[str, Any]]:
    """A pipeline's table as it is to be, and the sink's settings for it."""
    columns: Columns = {
        "id": Column(PLAIN["bigint"], required=True),
        "mark": Column(PLAIN["string"]),
        "need": Column(PLAIN["int"], required=chance.random() < 0.4),
    }
    columns |= {
        f"c{n}": Column(drawn_kind(chance, store)) for n in range(chance.choice([1, 2, 3, 5]))
    }
    settings: dict[str, Any] = {}
    upserts = store == "delta" and chance.random() < 0.35
    kinds = [kind for kind in _PARTITION_KINDS[store] if not (upserts and "decimal" in kind)]
    if store == "delta":
        kinds.remove("timestamp")  # of what delta-rs writes itself Spark reads another instant
    by: list[str] = []
    for number in range(chance.choices([0, 1, 2], [5, 5, 2])[0]):
        kind = chance.choice(kinds)
        if kind.startswith("decimal"):
            kinds.remove(kind)  # of one type only one: see docs/sinks/iceberg.md
        columns[f"p{number}"] = Column(PLAIN[kind])
        by.append(_partition(chance, f"p{number}", kind, store))
    if by:
        settings["partition_by"] = by
    key: tuple[str, ...] = ()
    sequence: tuple[str, ...] = ()
    if upserts:
        key = ("k",)
        columns["k"] = Column(_few(PLAIN[chance.choice(["int", "string"])]))
        settings |= {"mode": "upsert", "key": ["k"]}
        if chance.random() < 0.5:
            sequence = ("seq",)
            columns["seq"] = Column(Kind("int", PLAIN["int"].arrow, tuple(range(6))))
            settings["sequence_by"] = ["seq"]
    names = tuple(f"p{n}" for n in range(len(by)))
    model = Model(
        source=columns,
        partitions=1 if upserts else chance.choice([1, 1, 2]),
        partition_by=names,
        key=key,
        sequence_by=sequence,
        folders=frozenset(names) if store == "delta" else frozenset(),
    )
    return model, settings


def _few(kind: Kind) -> Kind:
    return Kind(kind.name, kind.arrow, kind.edges[:KEYS])


def _partition(chance: random.Random, name: str, kind: str, store: str) -> str:
    if store == "delta" or kind not in ("date", "timestamp", "timestamp_ntz"):
        return name
    transforms = _TIME_TRANSFORMS[: 3 if kind == "date" else 4]
    return chance.choice([name, *(f"{each}({name})" for each in transforms)])
