"""A replay that is only looked at: the same records are read, with today's transform, and what
comes of them is compared with the rows that are there. Nothing is published, and nothing can be.

1. **stage**: as a replay would, but in a folder that no recovery looks at, and without a manifest.
2. **read**: the checkpoint's rows as they are in the table, in one snapshot of it, into a file.
3. **compare** (:mod:`difference`): one Spark job.

One checkpoint after the other, and the files of each are gone before the next. The figures are
those of a replay that is applied now: the ledger must not move between plan and preview.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
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

from eo_pipeline.crashpoints import CrashPoint, reach
from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Counts, LedgerEntry
from eo_pipeline.ledger.history import Checkpoint
from eo_pipeline.operations.plan import look_again, refuse_stale, stale
from eo_pipeline.operations.replay import ReplayPlan, replay_entry
from eo_pipeline.runs.checkpoint import Steps
from eo_pipeline.sinks.arrow import JSON_FIELD
from eo_pipeline.sinks.capabilities import Selected, is_own_form
from eo_pipeline.sinks.columns import column
from eo_pipeline.sinks.lake.types import LAYOUT_PREFIX
from eo_pipeline.spark import SPARK_ERRORS, as_written, interruptible, job_error, staging_settings
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.scratch import Scratch, scratch
from eo_pipeline.storage.paths import Place, remove_tree

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

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


#: Of a checkpoint without rows, nothing else is known of the table's columns.
NO_COLUMNS = pa.schema([(CHECKPOINT_COLUMN, pa.int64())])


@dataclass(frozen=True)
class CheckpointPreview:
    """What a replay of ``checkpoint`` would make of its rows, by ``counts`` of the new ones."""

    checkpoint: Checkpoint
    counts: Counts
    rows: Difference

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "version": self.checkpoint.version,
            **difference_json(self.rows),
            "records": self.counts.records,
            "dead_letters": [self.checkpoint.counts.dead_letters, self.counts.dead_letters],
        }


@dataclass(frozen=True)
class ReplayPreview:
    """What applying ``plan`` would do. Rows are known by the columns ``key``, or by all their
    values if there is none; ``left_out`` are columns that were not compared, and why.
    """

    plan: ReplayPlan
    key: tuple[str, ...]
    checkpoints: tuple[CheckpointPreview, ...]
    left_out: dict[str, str]

    @property
    def rows(self) -> Difference:
        """Of all checkpoints."""
        return reduce(Difference.plus, (each.rows for each in self.checkpoints), Difference())

    @property
    def by(self) -> str:
        """How rows are known, in words."""
        if self.key == RECORD:
            return "by the record they came from"
        return f"by {', '.join(self.key)}" if self.key else "by all their values"

    def __str__(self) -> str:
        rows = self.rows
        return (
            f"{rows.changed:,} rows would change, {rows.added:,} be added, {rows.removed:,} be "
            f"removed, {rows.unchanged:,} stay as they are ({self.by})"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            **difference_json(self.rows),
            "key": list(self.key),
            "not_compared": self.left_out,
            "checkpoints": [each.to_json() for each in self.checkpoints],
            "examples": [each.to_json() for each in self.rows.examples],
        }


def difference_json(rows: Difference) -> dict[str, Any]:
    """The figures, as plain values."""
    names = ("before", "after", "added", "removed", "changed", "unchanged")
    return {name: getattr(rows, name) for name in names} | {"columns": dict(rows.columns)}


def preview_replay(
    steps: Steps, staging: Place, plan: ReplayPlan, key: Sequence[str]
) -> ReplayPreview:
    """See :meth:`eo_pipeline.pipeline.Pipeline.preview_replay`."""
    refuse_stale(steps.pipeline, plan.head, steps.session.head())
    plan.check(steps)
    found, known, left_out = [], tuple(key), dict[str, str]()
    with scratch(staging) as files:
        for number, checkpoint in enumerate(plan.checkpoints, start=1):
            steps.say(
                f"looking at checkpoint {checkpoint.version}, {number} of {len(plan.checkpoints)}"
            )
            look = _Look(steps, files, checkpoint, tuple(key))
            entry = replay_entry(plan.head, checkpoint, steps.run_id, {})
            with look.attempt(entry) as attempt:
                counts, rows, known, without = look.compared(entry, attempt)
            found.append(CheckpointPreview(checkpoint, counts, rows))
            left_out |= without
    newest, went_back = look_again(steps.session, plan.head)
    if went_back:
        raise stale(steps.pipeline, plan.head, steps.session.entry(newest))
    return ReplayPreview(plan, known, tuple(found), left_out)


@dataclass(frozen=True)
class _Look:
    """At one ``checkpoint``, with ``files`` meanwhile."""

    steps: Steps
    files: Scratch
    checkpoint: Checkpoint
    key: tuple[str, ...]

    @contextmanager
    def attempt(self, entry: LedgerEntry) -> Iterator[Attempt]:
        """Where the new rows wait: not where attempts are looked for. Gone afterwards."""
        folder = self.files.place / str(self.checkpoint.version)
        if isinstance(folder, Path):
            folder.mkdir()
        try:
            yield Attempt(folder, entry.id, entry.ledger_id, folder)
        finally:
            with suppress(OSError):  # a cancelled job may write for a moment more
                remove_tree(folder)
            self._before.unlink(missing_ok=True)

    @property
    def _before(self) -> Path:
        """The rows that are there."""
        return self.files.folder / f"before-{self.checkpoint.version}.parquet"

    def compared(
        self, entry: LedgerEntry, attempt: Attempt
    ) -> tuple[Counts, Difference, tuple[str, ...], dict[str, str]]:
        """The new rows' counts; the difference, by which columns, and without which."""
        steps, version = self.steps, self.checkpoint.version
        spark = steps.spark()
        reach(CrashPoint.STAGING)
        stager = replace(steps.knowing_stager(self.checkpoint.entry.counts), packs=False)
        staged, counts = stager.stage(spark, entry, attempt)
        reach(CrashPoint.STAGED)
        assert staged.rows is not None
        steps.say(f"comparing {counts.rows:,} rows with those that are there")
        schema = _write(steps.session.rows_of(Selected(version, version)), self._before)
        own_forms = [field.name for field in schema if is_own_form(field)]
        try:
            with staging_settings(spark):
                held = self.files.seen(self._before) if schema.names else self._before
                old = _read(spark, held, schema, is_empty=not schema.names)
                # the files of a table that is laid out lie in folders
                made = staged.rows
                new = _read(spark, attempt.rows_folder(), made.schema, is_empty=not made.files)
                compared = Compared.of(old.schema, new.schema, own_forms)
                key = self._key(compared)
                rows = difference(old, new, compared, key)
        except SPARK_ERRORS as error:
            job = f"Pipeline {steps.pipeline!r}: the preview's Spark job"
            raise job_error(spark, error, job) from error
        return counts, rows, key, dict(compared.left_out)

    def _key(self, compared: Compared) -> tuple[str, ...]:
        """What was asked for, else the record, if rows say from which they are.

        Raises:
            ConfigError: the result has no such column, or it cannot be compared.
        """
        absent = [name for name in self.key if name not in compared.after]
        if absent:
            raise ConfigError(
                f"key: rows are not known by {', '.join(absent)}: the columns that can be compared "
                f"are {', '.join(compared.after)}"
            )
        if self.key:
            return self.key
        return RECORD if set(RECORD) <= set(compared.after) else ()


def _read(spark: SparkSession, place: Place, schema: pa.Schema, *, is_empty: bool) -> DataFrame:
    """Parquet files; no rows, if there is none that holds some."""
    if is_empty:
        # not before there are rows: it takes its time
        from pyspark.sql.pandas.types import from_arrow_schema

        known = schema if schema.names else NO_COLUMNS
        return spark.createDataFrame([], from_arrow_schema(known, prefer_timestamp_ntz=True))
    return as_written(spark, place)


def _write(batches: Iterable[pa.RecordBatch], path: Path) -> pa.Schema:
    """``batches`` as one Parquet file, a batch in memory at a time. Returns the columns."""
    schema: pa.Schema | None = None
    writer: pq.ParquetWriter | None = None
    try:
        for batch in batches:
            if writer is None:
                schema = batch.schema
                writer = pq.ParquetWriter(path, schema)
            writer.write_batch(_in(batch, schema))
    finally:
        if writer is not None:
            writer.close()
    return schema if schema is not None else pa.schema([])


def _in(batch: pa.RecordBatch, schema: pa.Schema | None) -> pa.RecordBatch:
    """``batch`` in the columns of the first one; files of a lake may lack some."""
    assert schema is not None
    if batch.schema == schema:
        return batch
    names = batch.schema.names
    arrays = [
        batch.column(f.name).cast(f.type) if f.name in names else pa.nulls(batch.num_rows, f.type)
        for f in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
