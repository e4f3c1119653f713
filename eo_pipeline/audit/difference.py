"""Two states of some rows compared, in one Spark job: how many are added, removed and changed.

A row is known by a key, by the record that it came from, or by itself alone. Of one key there may
be several rows: then as many as are equal on both sides are unchanged, and of the others as many as
there are on both sides are changed.

Nothing that grows with the data comes to the driver: one line of sums for each of ten parts of the
keys, with an example of each kind. What a task holds is bounded too; the aggregations spill.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    MapType,
    NumericType,
    StringType,
    StructField,
    StructType,
)

from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN
from eo_pipeline.sinks.arrow import JSON_FIELD
from eo_pipeline.sinks.lake.types import LAYOUT_PREFIX
from eo_pipeline.sinks.unfit import column
from eo_pipeline.spark import interruptible

#: Where a row came from, if the pipeline writes lineage.
RECORD = ("_eo_topic", "_eo_partition", "_eo_offset")

_PARTS = 10

#: Characters of a value in an example.
_SHOWN = 120

_KINDS = ("changed", "added", "removed")
_SUMS = ("before", "after", *_KINDS, "told")


@dataclass(frozen=True)
class RowExample:
    """One row of a ``kind``: its ``key``, and the values ``before`` and ``after`` as texts; of a
    changed one only those that differ. None: there is no such row.
    """

    kind: str
    key: Mapping[str, str | None]
    before: Mapping[str, str | None] | None
    after: Mapping[str, str | None] | None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """Rows ``before`` and ``after``; how many of them are ``added``, ``removed`` and ``changed``.

    ``columns`` says how often each column changed, in the ``told`` ones of the changed rows: where
    several rows of one key changed, nobody can say which became which.
    """

    before: int = 0
    after: int = 0
    added: int = 0
    removed: int = 0
    changed: int = 0
    told: int = 0
    columns: Mapping[str, int] = field(default_factory=dict)
    examples: tuple[RowExample, ...] = ()

    @property
    def unchanged(self) -> int:
        return self.before - self.removed - self.changed

    def plus(self, more: Difference) -> Difference:
        """Of other rows too."""
        sums = {name: getattr(self, name) + getattr(more, name) for name in _SUMS}
        columns = Counter(self.columns) + Counter(more.columns)
        return Difference(**sums, columns=columns, examples=(*self.examples, *more.examples))


@dataclass(frozen=True)
class Compared:
    """The columns of two states of a table that can be compared, each side's in one form; why the
    others cannot.
    """

    before: Mapping[str, Column]
    after: Mapping[str, Column]
    left_out: Mapping[str, str]

    @classmethod
    def of(cls, before: StructType, after: StructType, own_forms: Sequence[str] = ()) -> Compared:
        """``own_forms`` are columns whose values ``before`` has in the store's own spelling."""
        there = {f.name.lower(): f for f in before}
        olds, news, left_out = dict[str, Column](), dict[str, Column](), dict[str, str]()
        for new in after:
            if new.name == CHECKPOINT_COLUMN or new.name.startswith(LAYOUT_PREFIX):
                continue
            old = there.pop(new.name.lower(), None)
            own_form = old is not None and old.name in own_forms
            pair = _pair(old, new, own_form)
            if pair is None:
                left_out[new.name] = "the store keeps a form of its own of such values"
            else:
                olds[new.name], news[new.name] = pair
        for old in there.values():
            if old.name != CHECKPOINT_COLUMN:
                left_out[old.name] = "the result has no such column; the store fills it, or null"
        return cls(olds, news, left_out)


def _pair(
    old: StructField | None, new: StructField, own_form: bool
) -> tuple[Column, Column] | None:
    """Both sides of one column, so that equal values are equal; None: that cannot be told."""
    mine, kind = column(new.name), new.dataType
    if old is None:  # the store will add it
        return _plain(F.lit(None).cast(kind), kind), _plain(mine, kind)
    held, known = column(old.name), old.dataType
    is_json = isinstance(kind, StructType) and kind.names == [JSON_FIELD]
    if is_json and isinstance(known, StringType):
        return _canonical(held), _canonical(mine[JSON_FIELD])
    if own_form:
        return None
    if known.simpleString() == kind.simpleString():  # whether there may be nulls says nothing
        return _plain(held, known), _plain(mine, kind)
    nested = isinstance(known, StructType | MapType) or isinstance(kind, StructType | MapType)
    one_text = isinstance(known, StringType) != isinstance(kind, StringType)
    if nested or one_text or isinstance(known, ArrayType) != isinstance(kind, ArrayType):
        return None
    if isinstance(known, NumericType) != isinstance(kind, NumericType):
        return None
    return _plain(held, known), _plain(mine.try_cast(known), known)


def _plain(column: Column, kind: DataType) -> Column:
    """Something that Spark can group by: it does not do so by maps."""
    if "map<" not in kind.simpleString():
        return column
    return F.when(column.isNotNull(), F.to_json(F.struct(column)))


def _canonical(text: Column) -> Column:
    """JSON with its fields in one order, whoever wrote it."""
    return F.coalesce(F.to_json(F.try_parse_json(text)), text)


def difference(
    before: DataFrame, after: DataFrame, compared: Compared, key: Sequence[str]
) -> Difference:
    """What becomes of the rows ``before`` if those ``after`` take their place. Without a ``key``
    a row is known by all its values.
    """
    names = list(compared.after)
    key = list(key) or names
    sides = [
        _side(before, compared.before, names, key, b=1, a=0),
        _side(after, compared.after, names, key, b=0, a=1),
    ]
    lines = interruptible(before.sparkSession, _summary(sides, names).toArrow).to_pylist()
    return reduce(Difference.plus, (_difference(line, names, key) for line in lines), Difference())


def _side(
    rows: DataFrame, columns: Mapping[str, Column], names: list[str], key: list[str], **one: int
) -> DataFrame:
    """Key and row as structs whose fields are numbered: names may be anything."""
    fields = [columns[name].alias(f"c{n}") for n, name in enumerate(names)]
    keys = [columns[name].alias(f"k{n}") for n, name in enumerate(key)]
    marks = [F.lit(value).cast("bigint").alias(name) for name, value in one.items()]
    return rows.select(F.struct(*keys).alias("key"), F.struct(*fields).alias("row"), *marks)


def _summary(sides: list[DataFrame], names: list[str]) -> DataFrame:
    equal = sides[0].union(sides[1]).groupBy("key", "row").agg(F.sum("b"), F.sum("a"))
    equal = equal.toDF("key", "row", "b", "a")
    b, a, zero = F.col("b"), F.col("a"), F.lit(0).cast("bigint")
    each = equal.withColumns({"gone": F.greatest(b - a, zero), "new": F.greatest(a - b, zero)})
    gone, new = F.col("gone"), F.col("new")
    by_key = each.groupBy("key").agg(
        *(F.sum(name).alias(name) for name in ("b", "a", "gone", "new")),
        F.max(F.when(gone > 0, F.col("row"))).alias("was"),
        F.max(F.when(new > 0, F.col("row"))).alias("is"),
    )
    told = (gone == 1) & (new == 1)
    changed = F.least(gone, new)
    sums = {
        "before": b,
        "after": a,
        "changed": changed,
        "added": new - changed,
        "removed": gone - changed,
        "told": told.cast("bigint"),
    }
    differs = [~F.col(f"was.c{n}").eqNullSafe(F.col(f"is.c{n}")) for n in range(len(names))]
    sums |= {f"c{n}": (told & each).cast("bigint") for n, each in enumerate(differs)}
    example = F.struct("key", "was", "is")
    shown = {
        "changed": F.when(told, example),
        "added": F.when(gone < new, example),
        "removed": F.when(new < gone, example),
    }
    part = F.pmod(F.xxhash64("key"), F.lit(_PARTS)).alias("part")
    summed = by_key.groupBy(part).agg(
        *(F.sum(sum_).alias(name) for name, sum_ in sums.items()),
        *(F.min(of_kind).alias(f"{kind}_example") for kind, of_kind in shown.items()),
    )
    return _with_texts(summed, sums)


def _with_texts(summed: DataFrame, sums: Mapping[str, Column]) -> DataFrame:
    """The examples' values as short texts, so that no line is long."""
    examples = []
    for kind in _KINDS:
        found = summed.schema[f"{kind}_example"].dataType
        assert isinstance(found, StructType)
        for side in found:
            assert isinstance(side.dataType, StructType)
            texts = [
                _text(F.col(f"{kind}_example")[side.name][f.name], f.dataType).alias(f.name)
                for f in side.dataType
            ]
            whole = F.col(f"{kind}_example")[side.name]
            examples.append(
                F.when(whole.isNotNull(), F.struct(*texts)).alias(f"{kind}_{side.name}")
            )
    return summed.select(*sums, *examples)


def _text(value: Column, kind: DataType) -> Column:
    if isinstance(kind, BinaryType):
        return F.hex(F.substring(value, 1, _SHOWN // 2))
    if isinstance(kind, StructType | ArrayType | MapType):
        return F.substring(F.to_json(value), 1, _SHOWN)
    return F.substring(value.cast("string"), 1, _SHOWN)


def _difference(line: Mapping[str, Any], names: list[str], key: list[str]) -> Difference:
    columns = {name: line[f"c{n}"] for n, name in enumerate(names) if line[f"c{n}"]}
    examples = [_example(kind, line, names, key) for kind in _KINDS if line[f"{kind}_key"]]
    sums = {name: line[name] for name in _SUMS}
    return Difference(**sums, columns=columns, examples=tuple(examples))


def _example(kind: str, line: Mapping[str, Any], names: list[str], key: list[str]) -> RowExample:
    keys = {name: line[f"{kind}_key"][f"k{n}"] for n, name in enumerate(key)}
    was, now = (
        None
        if (side := line[f"{kind}_{which}"]) is None
        else {name: side[f"c{n}"] for n, name in enumerate(names)}
        for which in ("was", "is")
    )
    if kind == "changed" and was is not None and now is not None:
        differing = [name for name in names if was[name] != now[name]]
        was, now = ({name: side[name] for name in differing} for side in (was, now))
    return RowExample(
        kind,
        keys,
        was if kind != "added" else None,
        now if kind != "removed" else None,
    )
