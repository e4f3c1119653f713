"""Preview of a replay: the records are read with the current transform, and the resulting rows are
compared with the present ones. Nothing is committed, nor can be.

1. **stage**: as in a replay, but in a folder that no recovery reads, and without a manifest.
2. **read**: write the checkpoint's present rows, from one snapshot of the table, into a file.
3. **compare**: one Spark job.

Checkpoints are previewed one after the other, and each one's files are removed before the next. The
figures are those of a replay applied now: the ledger must not move between plan and preview.
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
from eo_pipeline.ledger.history import Checkpoint, checkpoints
from eo_pipeline.operations.change_plan import look_again, refuse_stale, stale
from eo_pipeline.operations.replay import ReplayPlan, replay_entry
from eo_pipeline.runs.checkpoint import RunContext
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

#: Columns of a row's record, if the pipeline writes lineage.
RECORD = ("_eo_topic", "_eo_partition", "_eo_offset")

_PARTS = 10

#: Maximum number of characters of a value in an example.
_SHOWN = 120

_KINDS = ("changed", "added", "removed")
_SUMS = ("before", "after", *_KINDS, "told")


@dataclass(frozen=True)
class RowExample:
    """One example row of a ``kind``: its ``key``, and its values ``before`` and ``after`` as texts;
    only the differing ones of a changed row. None: the row does not exist on that side.
    """

    kind: str
    key: Mapping[str, str | None]
    before: Mapping[str, str | None] | None
    after: Mapping[str, str | None] | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


@dataclass(frozen=True)
class Difference:
    """Numbers of rows ``before`` and ``after``, and of ``added``, ``removed`` and ``changed`` ones.

    ``columns`` counts the changes of each column in the ``told`` ones of the changed rows: if
    several rows of one key changed, old and new rows cannot be matched.
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

    def of_table(self, name: str) -> Difference:
        """Return it with the name of one of several tables before its columns and keys."""
        columns = {f"{name}.{column}": count for column, count in self.columns.items()}
        examples = (replace(e, key={"table": name, **e.key}) for e in self.examples)
        return replace(self, columns=columns, examples=tuple(examples))

    def plus(self, more: Difference) -> Difference:
        """Return the sum of two differences."""
        sums = {name: getattr(self, name) + getattr(more, name) for name in _SUMS}
        columns = Counter(self.columns) + Counter(more.columns)
        return Difference(**sums, columns=columns, examples=(*self.examples, *more.examples))


@dataclass(frozen=True)
class ColumnPairs:
    """Comparable columns of two states of a table, in a common form; and the reasons for the
    others.
    """

    before: Mapping[str, Column]
    after: Mapping[str, Column]
    left_out: Mapping[str, str]

    @classmethod
    def of(
        cls, before: StructType, after: StructType, own_forms: Sequence[str] = ()
    ) -> ColumnPairs:
        """Match the columns. ``own_forms`` are columns of ``before`` in the store's own
        representation.
        """
        remaining = {f.name.lower(): f for f in before}
        olds, news, left_out = dict[str, Column](), dict[str, Column](), dict[str, str]()
        for new in after:
            if new.name == CHECKPOINT_COLUMN or new.name.startswith(LAYOUT_PREFIX):
                continue
            old = remaining.pop(new.name.lower(), None)
            own_form = old is not None and old.name in own_forms
            pair = _pair(old, new, own_form)
            if pair is None:
                left_out[new.name] = "the store keeps a form of its own of such values"
            else:
                olds[new.name], news[new.name] = pair
        for old in remaining.values():
            if old.name != CHECKPOINT_COLUMN:
                left_out[old.name] = "the result has no such column; the store fills it, or null"
        return cls(olds, news, left_out)


def _pair(
    old: StructField | None, new: StructField, own_form: bool
) -> tuple[Column, Column] | None:
    """Return both sides of a column in a form in which equal values are equal; None if
    impossible.
    """
    new_values, new_type = column(new.name), new.dataType
    if old is None:  # the store will add the column
        return _plain(F.lit(None).cast(new_type), new_type), _plain(new_values, new_type)
    old_values, old_type = column(old.name), old.dataType
    is_json = isinstance(new_type, StructType) and new_type.names == [JSON_FIELD]
    if is_json and isinstance(old_type, StringType):
        return _canonical(old_values), _canonical(new_values[JSON_FIELD])
    if own_form:
        return None
    if old_type.simpleString() == new_type.simpleString():  # nullability is irrelevant
        return _plain(old_values, old_type), _plain(new_values, new_type)
    nested = isinstance(old_type, StructType | MapType) or isinstance(
        new_type, StructType | MapType
    )
    one_text = isinstance(old_type, StringType) != isinstance(new_type, StringType)
    if nested or one_text or isinstance(old_type, ArrayType) != isinstance(new_type, ArrayType):
        return None
    if isinstance(old_type, NumericType) != isinstance(new_type, NumericType):
        return None
    return _plain(old_values, old_type), _plain(new_values.try_cast(old_type), old_type)


def _plain(column: Column, kind: DataType) -> Column:
    """Return a column that Spark can group by; maps become JSON."""
    if "map<" not in kind.simpleString():
        return column
    return F.when(column.isNotNull(), F.to_json(F.struct(column)))


def _canonical(text: Column) -> Column:
    """Return JSON with its fields in a canonical order."""
    return F.coalesce(F.to_json(F.try_parse_json(text)), text)


def difference(
    before: DataFrame, after: DataFrame, compared: ColumnPairs, key: Sequence[str]
) -> Difference:
    """Compare the rows ``before`` with the rows ``after`` that would replace them. Without a
    ``key`` rows are matched by all their values.
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
    rows: DataFrame, columns: Mapping[str, Column], names: list[str], key: list[str], **counts: int
) -> DataFrame:
    """Return key and row as structs with numbered fields, since names may be arbitrary."""
    fields = [columns[name].alias(f"c{n}") for n, name in enumerate(names)]
    keys = [columns[name].alias(f"k{n}") for n, name in enumerate(key)]
    marks = [F.lit(value).cast("bigint").alias(name) for name, value in counts.items()]
    return rows.select(F.struct(*keys).alias("key"), F.struct(*fields).alias("row"), *marks)


def _summary(sides: list[DataFrame], names: list[str]) -> DataFrame:
    equal = sides[0].union(sides[1]).groupBy("key", "row").agg(F.sum("b"), F.sum("a"))
    equal = equal.toDF("key", "row", "b", "a")
    b, a, zero = F.col("b"), F.col("a"), F.lit(0).cast("bigint")
    by_row = equal.withColumns({"gone": F.greatest(b - a, zero), "new": F.greatest(a - b, zero)})
    gone, new = F.col("gone"), F.col("new")
    by_key = by_row.groupBy("key").agg(
        *(F.sum(name).alias(name) for name in ("b", "a", "gone", "new")),
        F.max(F.when(gone > 0, F.col("row"))).alias("was"),
        F.max(F.when(new > 0, F.col("row"))).alias("is"),
    )
    matched = (gone == 1) & (new == 1)
    changed = F.least(gone, new)
    sums = {
        "before": b,
        "after": a,
        "changed": changed,
        "added": new - changed,
        "removed": gone - changed,
        "told": matched.cast("bigint"),
    }
    differs = [~F.col(f"was.c{n}").eqNullSafe(F.col(f"is.c{n}")) for n in range(len(names))]
    sums |= {f"c{n}": (matched & change).cast("bigint") for n, change in enumerate(differs)}
    example = F.struct("key", "was", "is")
    shown = {
        "changed": F.when(matched, example),
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
    """Shorten the examples' values to texts, which bounds the length of a line."""
    examples = []
    for kind in _KINDS:
        struct = summed.schema[f"{kind}_example"].dataType
        assert isinstance(struct, StructType)
        for side in struct:
            assert isinstance(side.dataType, StructType)
            texts = [
                _text(F.col(f"{kind}_example")[side.name][f.name], f.dataType).alias(f.name)
                for f in side.dataType
            ]
            value = F.col(f"{kind}_example")[side.name]
            examples.append(
                F.when(value.isNotNull(), F.struct(*texts)).alias(f"{kind}_{side.name}")
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


#: Columns of a checkpoint without rows; the table's others are unknown.
NO_COLUMNS = pa.schema([(CHECKPOINT_COLUMN, pa.int64())])


@dataclass(frozen=True)
class CheckpointPreview:
    """Preview of one ``checkpoint``: the ``counts`` of the new rows, and the difference; of several
    tables in one ``table``.
    """

    checkpoint: Checkpoint
    counts: Counts
    rows: Difference
    table: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "version": self.checkpoint.version,
            **({"table": self.table} if self.table else {}),
            **difference_json(self.rows),
            "records": self.counts.records,
            "dead_letters": [self.checkpoint.counts.dead_letters, self.counts.dead_letters],
        }


@dataclass(frozen=True)
class ReplayPreview:
    """Preview of applying ``plan``. Rows are matched by the columns ``key``, or by all their values
    without one; ``left_out`` has the columns that were not compared, and the reasons.
    """

    plan: ReplayPlan
    key: tuple[str, ...]
    checkpoints: tuple[CheckpointPreview, ...]
    left_out: dict[str, str]

    @property
    def rows(self) -> Difference:
        """Difference of all checkpoints together."""
        return reduce(
            Difference.plus, (checkpoint.rows for checkpoint in self.checkpoints), Difference()
        )

    def of_table(self, name: str) -> ReplayPreview:
        """Return it as that of one of several tables, by its ``name``."""
        parts = (replace(c, rows=c.rows.of_table(name), table=name) for c in self.checkpoints)
        left_out = {f"{name}.{column}": why for column, why in self.left_out.items()}
        return replace(self, checkpoints=tuple(parts), left_out=left_out)

    @property
    def by(self) -> str:
        """Description of how rows are matched."""
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
        """Return plain values."""
        return {
            **difference_json(self.rows),
            "key": list(self.key),
            "not_compared": self.left_out,
            "checkpoints": [checkpoint.to_json() for checkpoint in self.checkpoints],
            "examples": [example.to_json() for example in self.rows.examples],
        }


def difference_json(rows: Difference) -> dict[str, Any]:
    """Return the figures as plain values."""
    names = ("before", "after", "added", "removed", "changed", "unchanged")
    return {name: getattr(rows, name) for name in names} | {"columns": dict(rows.columns)}


def preview_replay(
    steps: RunContext, staging: Place, plan: ReplayPlan, key: Sequence[str]
) -> ReplayPreview:
    """See :meth:`eo_pipeline.pipeline.Pipeline.preview_replay`."""
    refuse_stale(steps.pipeline, plan.head, steps.session.head())
    plan.check(steps)
    tables = [name for name, table in steps.tables.items() if not table.takes_rest]
    with scratch(staging) as files:
        of_tables = []
        for name in tables:
            steps.say(f"looking at table {name}")
            of_table = steps.of_table(name)
            part = _of_table(plan, of_table)
            of_tables.append(_previewed(of_table, files, part, key).of_table(name))
        preview = _together(plan, of_tables) if tables else _previewed(steps, files, plan, key)
    newest, went_back = look_again(steps.session, plan.head)
    if went_back:
        raise stale(steps.pipeline, plan.head, steps.session.entry(newest))
    return preview


def _previewed(
    steps: RunContext, files: Scratch, plan: ReplayPlan, key: Sequence[str]
) -> ReplayPreview:
    """Return the preview of ``plan``, which is of one table."""
    previews, used_key, left_out = [], tuple(key), dict[str, str]()
    for number, checkpoint in enumerate(plan.checkpoints, start=1):
        steps.say(
            f"looking at checkpoint {checkpoint.version}, {number} of {len(plan.checkpoints)}"
        )
        comparer = _CheckpointComparer(steps, files, checkpoint, tuple(key))
        entry = replay_entry(plan.head, checkpoint, steps.run_id, {})
        with comparer.attempt(entry) as attempt:
            counts, rows, used_key, missing = comparer.compared(entry, attempt)
        previews.append(CheckpointPreview(checkpoint, counts, rows))
        left_out |= missing
    return ReplayPreview(plan, used_key, tuple(previews), left_out)


def _together(plan: ReplayPlan, previews: Sequence[ReplayPreview]) -> ReplayPreview:
    """Return the ``previews`` of several tables as one; their key if all have the same."""
    keys = {preview.key for preview in previews if preview.checkpoints}
    parts = (part for preview in previews for part in preview.checkpoints)
    left_out = {name: why for preview in previews for name, why in preview.left_out.items()}
    key = keys.pop() if len(keys) == 1 else ()
    return ReplayPreview(plan, key, tuple(parts), left_out)


def _of_table(plan: ReplayPlan, steps: RunContext) -> ReplayPlan:
    """Return the part of ``plan`` of one of several tables: its checkpoints that read its topics,
    with the ranges and counts of the table.
    """
    versions = {checkpoint.version for checkpoint in plan.checkpoints}
    live = checkpoints([*steps.session.history(min(versions))])
    head = steps.session.head()
    assert head is not None
    planned = tuple(checkpoint for checkpoint in live if checkpoint.version in versions)
    return replace(plan, head=head, checkpoints=planned)


@dataclass(frozen=True)
class _CheckpointComparer:
    """Compares one ``checkpoint``, with temporary ``files``."""

    steps: RunContext
    files: Scratch
    checkpoint: Checkpoint
    key: tuple[str, ...]

    @contextmanager
    def attempt(self, entry: LedgerEntry) -> Iterator[Attempt]:
        """Yield a temporary folder for the new rows, which no recovery reads."""
        folder = self.files.place / str(self.checkpoint.version)
        if isinstance(folder, Path):
            folder.mkdir()
        try:
            yield Attempt(folder, entry.id, entry.ledger_id, folder)
        finally:
            with suppress(OSError):  # a cancelled job may still write for a moment
                remove_tree(folder)
            self._before.unlink(missing_ok=True)

    @property
    def _before(self) -> Path:
        """File of the present rows."""
        return self.files.folder / f"before-{self.checkpoint.version}.parquet"

    def compared(
        self, entry: LedgerEntry, attempt: Attempt
    ) -> tuple[Counts, Difference, tuple[str, ...], dict[str, str]]:
        """Return the new rows' counts, the difference, the key columns, and the columns
        left out.
        """
        steps, version = self.steps, self.checkpoint.version
        spark = steps.spark()
        reach(CrashPoint.STAGING)
        stager = steps.stager_of_one_table(self.checkpoint.entry.counts)
        staged, counts = stager.stage(spark, entry, attempt)
        reach(CrashPoint.STAGED)
        assert staged.rows is not None
        steps.say(f"comparing {counts.rows:,} rows with those that are there")
        schema = _write(steps.session.rows_of(Selected(version, version)), self._before)
        own_forms = [field.name for field in schema if is_own_form(field)]
        try:
            with staging_settings(spark):
                file = self.files.seen(self._before) if schema.names else self._before
                old = _read(spark, file, schema, is_empty=not schema.names)
                # a partitioned or clustered layout has subfolders
                staged_rows = staged.rows
                new = _read(
                    spark, attempt.rows_folder(), staged_rows.schema, is_empty=not staged_rows.files
                )
                compared = ColumnPairs.of(old.schema, new.schema, own_forms)
                key = self._key(compared)
                rows = difference(old, new, compared, key)
        except SPARK_ERRORS as error:
            job = f"Pipeline {steps.pipeline!r}: the preview's Spark job"
            raise job_error(spark, error, job) from error
        return counts, rows, key, dict(compared.left_out)

    def _key(self, compared: ColumnPairs) -> tuple[str, ...]:
        """Return the requested key, or else the record's columns if rows have them.

        Raises:
            ConfigError: the result lacks a key column, or it cannot be compared.
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
    """Read Parquet files; return no rows if there are none."""
    if is_empty:
        # here, because the import is slow and rarely needed
        from pyspark.sql.pandas.types import from_arrow_schema

        columns = schema if schema.names else NO_COLUMNS
        return spark.createDataFrame([], from_arrow_schema(columns, prefer_timestamp_ntz=True))
    return as_written(spark, place)


def _write(batches: Iterable[pa.RecordBatch], path: Path) -> pa.Schema:
    """Write ``batches`` as one Parquet file, one batch in memory at a time. Return the columns."""
    schema: pa.Schema | None = None
    writer: pq.ParquetWriter | None = None
    try:
        for batch in batches:
            if writer is None:
                schema = batch.schema
                writer = pq.ParquetWriter(path, schema)
            writer.write_batch(_with_columns(batch, schema))
    finally:
        if writer is not None:
            writer.close()
    return schema if schema is not None else pa.schema([])


def _with_columns(batch: pa.RecordBatch, schema: pa.Schema | None) -> pa.RecordBatch:
    """Return ``batch`` in the columns of the first one; files of a lake may lack some."""
    assert schema is not None
    if batch.schema == schema:
        return batch
    names = batch.schema.names
    arrays = [
        batch.column(f.name).cast(f.type) if f.name in names else pa.nulls(batch.num_rows, f.type)
        for f in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
