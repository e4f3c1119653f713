"""A replay that is only looked at: the same records are read, with today's transform, and what
comes of them is compared with the rows that are there. Nothing is published, and nothing can be.

1. **stage**: as a replay would, but in a folder that no recovery looks at, and without a manifest.
2. **read**: the checkpoint's rows as they are in the table, in one snapshot of it, into a file.
3. **compare** (:mod:`difference`): one Spark job.

One checkpoint after the other, and the files of each are gone before the next. The figures are
those of a replay that is applied now: the ledger must not move between plan and preview.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from eo_pipeline.audit.difference import RECORD, Compared, Difference, difference
from eo_pipeline.crashpoints import CrashPoint, reach
from eo_pipeline.errors import ConfigError
from eo_pipeline.ledger.branch import Checkpoint
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Counts, LedgerEntry
from eo_pipeline.places import Place, remove_tree
from eo_pipeline.run.checkpoint import Steps
from eo_pipeline.run.replay import ReplayPlan, replay_entry
from eo_pipeline.run.targets import look_again, refuse_stale, stale
from eo_pipeline.sinks.past import Selected, is_own_form
from eo_pipeline.spark import SPARK_ERRORS, as_written, job_error, staging_settings
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.scratch import Scratch, scratch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
