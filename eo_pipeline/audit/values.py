"""What the rows hold, against the checksums that were made when they were staged.

Kafka is not asked: this proves rows whose records are long gone, whatever the transform is today.
The rows are read from the store a part at a time, so that no more than a part waits on the disk.
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

#: Why nothing can be said of some rows.
NOT_MADE = "no checksum was made when they were written"
REPLACED = "rows replace each other by key here"

#: ``SinkSession.values``, or the same of dead letters.
_Read = Callable[[int], Iterator[pa.RecordBatch]]

#: Bytes of rows, as Arrow has them, in one part; each costs a small job.
PART_BYTES = 1 << 30


@dataclass(frozen=True)
class Proofs:
    """What checksums say of checkpoints: of ``as_committed`` ones that they hold what was staged,
    of ``changed`` ones that they do not, and why of the others nothing can be said.
    ``found`` is the number of rows of each checkpoint, ``columns`` are those compared.
    """

    as_committed: frozenset[int] = frozenset()
    changed: frozenset[int] = frozenset()
    unknown: Mapping[str, int] = field(default_factory=dict)
    found: Mapping[int, int] = field(default_factory=dict)
    columns: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Summed:
    """Rows of one checkpoint, in one part or more."""

    rows: int = 0
    sums: checksum.Sums = checksum.NO_ROWS

    def plus(self, more: Mapping[str, Any]) -> _Summed:
        return _Summed(self.rows + more["rows"], self.sums.plus(checksum.summed(more)))


class ValueSums:
    """Checksums of the rows of some ``checkpoints``, made of ``batches`` that hold them.

    ``asked`` gives each checkpoint's stored checksum; without one its rows are only counted.
    """

    def __init__(
        self, spark: SparkSession, pipeline: str, asked: Mapping[int, Checksum | None]
    ) -> None:
        self._spark = spark
        self._pipeline = pipeline
        self._asked = asked
        self._found: dict[int, _Summed] = defaultdict(_Summed)
        self._why: dict[int, str] = {}

    def add(self, batches: Iterable[pa.RecordBatch], files: Scratch) -> None:
        """Read all of ``batches``; ``files`` that are made of them are gone afterwards.

        Raises:
            SparkJobError: the job failed.
        """
        for part in _parts(self._mine(batches), files.folder):
            self._add_part(files.seen(part))
            files.remove(part)

    def proofs(self) -> Proofs:
        """What was found, against what was asked."""
        verdicts = {number: self._verdict(number) for number in self._asked}
        why: dict[str, int] = defaultdict(int)
        for verdict in verdicts.values():
            if isinstance(verdict, str):
                why[verdict] += 1
        compared = [c for n, c in self._asked.items() if c and not isinstance(verdicts[n], str)]
        return Proofs(
            frozenset(n for n, verdict in verdicts.items() if verdict is True),
            frozenset(n for n, verdict in verdicts.items() if verdict is False),
            dict(why),
            {number: self._found[number].rows for number in self._asked},
            tuple(sorted({name for each in compared for name in each.columns})),
        )

    def _verdict(self, number: int) -> bool | str:
        asked = self._asked[number]
        if asked is None:
            return NOT_MADE
        if asked.algorithm != checksum.ALGORITHM:
            return f"their checksums are by rules ({asked.algorithm}) that this release has not"
        if number in self._why:
            return self._why[number]
        found = self._found[number]
        return checksum.digest(found.sums) == asked.digest

    def _mine(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = pa.array(list(self._asked), pa.int64())
        for batch in batches:
            if CHECKPOINT_COLUMN in batch.schema.names:
                number = batch.column(CHECKPOINT_COLUMN).cast(pa.int64())
                mine = batch.filter(pc.is_in(number, numbers))
                if mine.num_rows:
                    yield mine

    def _add_part(self, part: Place) -> None:
        alike: dict[str, list[int]] = defaultdict(list)
        for number, asked in self._asked.items():
            alike[repr(asked and sorted(asked.columns.items()))].append(number)
        try:
            with staging_settings(self._spark):
                frame = as_written(self._spark, part)
                for numbers in alike.values():
                    own = F.col(CHECKPOINT_COLUMN).isin(*numbers)
                    self._add_alike(numbers, frame if len(alike) == 1 else frame.where(own))
        except SPARK_ERRORS as error:
            job = f"Pipeline {self._pipeline!r}: the audit's Spark job over values"
            raise job_error(self._spark, error, job) from error

    def _add_alike(self, numbers: Sequence[int], frame: DataFrame) -> None:
        """Rows of checkpoints with checksums of the same columns."""
        asked, hashed, why = self._asked[numbers[0]], F.lit(0).cast("bigint"), None
        if asked is not None and asked.algorithm == checksum.ALGORITHM:
            found = {f.name: (checksum.column(f.name), f.dataType) for f in frame.schema}
            try:
                hashed = checksum.row_hash(asked.columns, found)
            except checksum.NotComparableError as error:
                why = f"of the columns that their checksums are made of, {error}"
        rows = frame.select(CHECKPOINT_COLUMN, hashed.alias("hash")).groupBy(CHECKPOINT_COLUMN)
        summed = rows.agg(F.count(F.lit(1)).alias("rows"), *checksum.sums(F.col("hash")))
        for line in interruptible(self._spark, summed.toArrow).to_pylist():
            version = line[CHECKPOINT_COLUMN]
            self._found[version] = self._found[version].plus(line)
            if why is not None:
                self._why[version] = why


def _parts(batches: Iterable[pa.RecordBatch], folder: Path) -> Iterator[Path]:
    """A file for each part of the rows: a part ends where it is large enough,
    and where the columns become others.
    """
    for schema, group in groupby(batches, lambda batch: batch.schema):
        alike = iter(group)
        for first in alike:
            part = folder / f"values-{new_transaction_id()}.parquet"
            with pq.ParquetWriter(part, schema) as writer:
                written = 0
                for batch in chain([first], alike):
                    writer.write_batch(batch)
                    written += batch.nbytes
                    if written >= PART_BYTES:
                        break
            yield part


@dataclass(frozen=True)
class Values:
    """What checksums say of the live checkpoints' rows, and of their dead letters."""

    rows: Proofs = Proofs()
    letters: Proofs = Proofs()


def not_compared(checkpoints: Sequence[Checkpoint], reason: str) -> Values:
    """Nothing is said of them."""
    return Values(Proofs(unknown={reason: len(checkpoints)}) if checkpoints else Proofs())


@dataclass(frozen=True)
class Look:
    """One look at what the table and the dead letters hold; ``files`` are for meanwhile.
    Spark is asked for only if there is something to compare.
    """

    session: SinkSession
    spark: Callable[[], SparkSession]
    pipeline: str
    files: Scratch

    def values(self, checkpoints: Sequence[Checkpoint], *, keeps_every_row: bool) -> Values:
        """Of these live checkpoints.

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
            else Proofs(unknown={REPLACED: len(rows)} if rows else {}),
            self._proofs(letters, self.session.dead_letter_values, count=True),
        )

    def _proofs(
        self, asked: dict[int, Checksum | None], read: _Read, *, count: bool = False
    ) -> Proofs:
        """``count``: also of checkpoints without a checksum the rows are counted."""
        if not any(asked.values()) and not (count and asked):
            return Proofs(unknown={NOT_MADE: len(asked)} if asked else {})
        try:
            sums = ValueSums(self.spark(), self.pipeline, asked)
            sums.add(read(min(asked)), self.files)
        except RefusedError as error:
            return Proofs(unknown={str(error): len(asked)})
        return sums.proofs()
