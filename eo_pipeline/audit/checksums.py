"""Compare the rows' values with the checksums made when they were staged.

This needs no Kafka: it proves rows whose records no longer exist, whatever the transform is now.
Rows are read from the store in parts, so that only one part at a time needs disk space.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from eo_pipeline.batch import checksum
from eo_pipeline.errors import RefusedError
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Checksum, new_transaction_id
from eo_pipeline.ledger.history import Checkpoint
from eo_pipeline.sinks.session import SinkSession
from eo_pipeline.spark import SPARK_ERRORS, as_written, interruptible, job_error, staging_settings
from eo_pipeline.staging.scratch import Scratch
from eo_pipeline.storage.paths import Place

#: Reasons why rows cannot be compared.
NOT_MADE = "no checksum was made when they were written"
REPLACED = "rows replace each other by key here"

#: ``SinkSession.values`` or ``SinkSession.dead_letter_values``.
_Read = Callable[[int], Iterator[pa.RecordBatch]]

#: Bytes of one part in Arrow's format; each part costs a small job.
PART_BYTES = 1 << 30


@dataclass(frozen=True)
class ChecksumResults:
    """Results of the checksums, by checkpoint: ``as_committed`` ones hold the staged values,
    ``changed`` ones do not, ``unknown`` counts the others by reason. ``found`` is the number of
    rows of each checkpoint, ``columns`` are those compared.
    """

    as_committed: frozenset[int] = frozenset()
    changed: frozenset[int] = frozenset()
    unknown: Mapping[str, int] = field(default_factory=dict)
    found: Mapping[int, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class _RowSums:
    """Sums over the rows of one checkpoint, of one part or several."""

    rows: int = 0
    sums: checksum.Sums = checksum.NO_ROWS

    def plus(self, more: Mapping[str, Any]) -> _RowSums:
        return _RowSums(self.rows + more["rows"], self.sums.plus(checksum.summed(more)))


class ValueSums:
    """Checksums of the rows of some checkpoints, computed from ``batches``.

    ``stored`` has each checkpoint's stored checksum; without one its rows are only counted.
    """

    def __init__(
        self, spark: SparkSession, pipeline: str, stored: Mapping[int, Checksum | None]
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._stored = stored
        self._sums: dict[int, _RowSums] = defaultdict(_RowSums)
        self._incomparable: dict[int, str] = {}

    def add(self, batches: Iterable[pa.RecordBatch], files: Scratch) -> None:
        """Sum up all of ``batches``; temporary ``files`` are removed afterwards.

        Raises:
            SparkJobError: the job failed.
        """
        for part in _parts(self._selected_rows(batches), files.folder):
            self._add_part(files.seen(part))
            files.remove(part)

    def proofs(self) -> ChecksumResults:
        """Return the results of comparing the sums with the stored checksums."""
        verdicts = {number: self._compare_checksum(number) for number in self._stored}
        reasons: dict[str, int] = defaultdict(int)
        for verdict in verdicts.values():
            if isinstance(verdict, str):
                reasons[verdict] += 1
        compared = [c for n, c in self._stored.items() if c and not isinstance(verdicts[n], str)]
        return ChecksumResults(
            frozenset(n for n, verdict in verdicts.items() if verdict is True),
            frozenset(n for n, verdict in verdicts.items() if verdict is False),
            dict(reasons),
            {number: self._sums[number].rows for number in self._stored},
            tuple(sorted({name for stored in compared for name in stored.columns})),
        )

    def _compare_checksum(self, number: int) -> bool | str:
        stored = self._stored[number]
        if stored is None:
            return NOT_MADE
        if stored.algorithm != checksum.ALGORITHM:
            return f"their checksums use an algorithm ({stored.algorithm}) this release lacks"
        if number in self._incomparable:
            return self._incomparable[number]
        return checksum.digest(self._sums[number].sums) == stored.digest

    def _selected_rows(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = pa.array(list(self._stored), pa.int64())
        for batch in batches:
            if CHECKPOINT_COLUMN in batch.schema.names:
                number = batch.column(CHECKPOINT_COLUMN).cast(pa.int64())
                selected = batch.filter(pc.is_in(number, numbers))
                if selected.num_rows:
                    yield selected

    def _add_part(self, part: Place) -> None:
        by_columns: dict[str, list[int]] = defaultdict(list)
        for number, stored in self._stored.items():
            by_columns[repr(stored and sorted(stored.columns.items()))].append(number)
        try:
            with staging_settings(self._spark):
                frame = as_written(self._spark, part)
                for numbers in by_columns.values():
                    selected = F.col(CHECKPOINT_COLUMN).isin(*numbers)
                    self._add_group(
                        numbers, frame if len(by_columns) == 1 else frame.where(selected)
                    )
        except SPARK_ERRORS as error:
            job = f"Pipeline {self._pipeline!r}: the audit's Spark job over values"
            raise job_error(self._spark, error, job) from error

    def _add_group(self, numbers: Sequence[int], frame: DataFrame) -> None:
        """Add the rows of checkpoints whose checksums have the same columns."""
        stored, hashed, reason = self._stored[numbers[0]], F.lit(0).cast("bigint"), None
        if stored is not None and stored.algorithm == checksum.ALGORITHM:
            columns = {f.name: (checksum.column(f.name), f.dataType) for f in frame.schema}
            try:
                hashed = checksum.row_hash(stored.columns, columns)
            except checksum.NotComparableError as error:
                reason = f"a column in their checksums has changed: {error}"
        rows = frame.select(CHECKPOINT_COLUMN, hashed.alias("hash")).groupBy(CHECKPOINT_COLUMN)
        summed = rows.agg(F.count(F.lit(1)).alias("rows"), *checksum.sums(F.col("hash")))
        for line in interruptible(self._spark, summed.toArrow).to_pylist():
            version = line[CHECKPOINT_COLUMN]
            self._sums[version] = self._sums[version].plus(line)
            if reason is not None:
                self._incomparable[version] = reason


def _parts(batches: Iterable[pa.RecordBatch], folder: Path) -> Iterator[Path]:
    """Write the rows into part files. A part ends when it is large enough, or when the columns
    change.
    """
    for schema, group in groupby(batches, lambda batch: batch.schema):
        same_columns = iter(group)
        for first in same_columns:
            part = folder / f"values-{new_transaction_id()}.parquet"
            with pq.ParquetWriter(part, schema) as writer:
                written = 0
                for batch in chain([first], same_columns):
                    writer.write_batch(batch)
                    written += batch.nbytes
                    if written >= PART_BYTES:
                        break
            yield part


@dataclass(frozen=True)
class Values:
    """Results of the checksums of the live checkpoints' rows and dead letters."""

    rows: ChecksumResults = ChecksumResults()
    letters: ChecksumResults = ChecksumResults()


def not_compared(checkpoints: Sequence[Checkpoint], reason: str) -> Values:
    """Return the result without a comparison, for ``reason``."""
    return Values(
        ChecksumResults(unknown={reason: len(checkpoints)}) if checkpoints else ChecksumResults()
    )


@dataclass(frozen=True)
class ValueReader:
    """Reads the values of the table and the dead letters; ``files`` are temporary. Spark is started
    only if there are checksums to compare.
    """

    session: SinkSession
    spark: Callable[[], SparkSession]
    pipeline: str
    files: Scratch

    def values(self, checkpoints: Sequence[Checkpoint], *, keeps_every_row: bool) -> Values:
        """Compare the values of these live checkpoints.

        Raises:
            SparkJobError: a job failed.
            SinkUnavailableError: the store does not answer.
        """
        rows = {c.version: c.counts.checksum for c in checkpoints if c.counts.rows}
        letters = {
            c.version: c.counts.dead_letters_checksum for c in checkpoints if c.counts.dead_letters
        }
        return Values(
            self._proofs(rows, self.session.values)
            if keeps_every_row
            else ChecksumResults(unknown={REPLACED: len(rows)} if rows else {}),
            self._proofs(letters, self.session.dead_letter_values, count=True),
        )

    def _proofs(
        self, stored: dict[int, Checksum | None], read: _Read, *, count: bool = False
    ) -> ChecksumResults:
        """Compare with checksums. ``count``: also count rows of checkpoints without a checksum."""
        if not any(stored.values()) and not (count and stored):
            return ChecksumResults(unknown={NOT_MADE: len(stored)} if stored else {})
        try:
            sums = ValueSums(self.spark(), self.pipeline, stored)
            sums.add(read(min(stored)), self.files)
        except RefusedError as error:
            return ChecksumResults(unknown={str(error): len(stored)})
        return sums.proofs()
