"""Counts of what a checkpoint's Spark job read, which no transform can touch.

The counts come from the job itself, collected as the records flow into the transform. A transform
decides what flows: an action of its own, a ``limit``, a sort that samples first, a stage that Spark
runs again. So they are believed only if nothing of that can have been:

1. they are of our own action, not of an earlier one; and
2. they prove themselves (:mod:`eo_pipeline.batch.counting`), or there is no transform, or the job's
   plan is a chain of steps each of which takes every record once.

Otherwise a small second job counts the same ranges again, without the transform. Whatever it was,
what was read must be what was good, bad and skipped together.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from eo_pipeline.batch.decode import Decoded, Rows
from eo_pipeline.batch.unknown_fields import shown
from eo_pipeline.errors import SetupError, SparkJobError
from eo_pipeline.ledger.entry import Checksum, Counts, LedgerEntry
from eo_pipeline.ledger.offsets import OffsetRange
from eo_pipeline.spark import ACTION, Observed, interruptible
from eo_pipeline.spark.observation import explained
from eo_pipeline.staging.rows import StagedOutput, StagedTable
from eo_pipeline.storage.paths import RemotePath

#: A prime; products of two smaller numbers, and sums of billions of them, fit 64 bits.
_PRIME = 2**31 - 1

_WEIGHTS, _FIRSTS, _SQUARES = "weights", "firsts", "squares"


def sums() -> list[Column]:
    """Metrics over records with ``topic``, ``partition`` and ``offset``."""
    name = F.concat(F.col("topic"), F.lit("-"), F.col("partition").cast("string"))
    weight = F.crc32(name) % _PRIME
    offset = F.col("offset") % _PRIME
    terms = {
        _WEIGHTS: weight,
        _FIRSTS: weight * offset % _PRIME,
        _SQUARES: weight * (offset * offset % _PRIME) % _PRIME,
    }
    return [F.coalesce(F.sum(term), F.lit(0)).alias(key) for key, term in terms.items()]


def are_whole(ranges: Sequence[OffsetRange], records: int, counted: Mapping[str, Any]) -> bool:
    """True if ``records`` with these :func:`sums` are all offsets of ``ranges``, each once. False
    also if an offset holds no record: holes are nothing wrong, but prove nothing.
    """
    weights = firsts = squares = 0
    for r in ranges:
        weight = zlib.crc32(f"{r.topic}-{r.partition}".encode()) % _PRIME
        weights += weight * r.span
        firsts += weight * (_sum(r.end) - _sum(r.start))
        squares += weight * (_sum_of_squares(r.end) - _sum_of_squares(r.start))
    return (
        records == sum(r.span for r in ranges)
        and counted[_WEIGHTS] == weights
        and (counted[_FIRSTS] - firsts) % _PRIME == 0
        and (counted[_SQUARES] - squares) % _PRIME == 0
    )


def _sum(end: int) -> int:
    """Of the numbers below ``end``."""
    return end * (end - 1) // 2


def _sum_of_squares(end: int) -> int:
    return end * (end - 1) * (2 * end - 1) // 6


#: Seconds in which a finished job's metrics come. They come together: after those of the result,
#: those of the reading are there, or the optimizer has left the reading out and they never come.
_RESULT_SECONDS = 30.0
_READING_SECONDS = 1.0

#: See :class:`eo_pipeline.spark.Observed`. A job that brings its rows to memory is small: if its
#: metrics are not heard it is run again, which costs what more names would cost each time.
NAMES_OF_FILES, NAMES_IN_MEMORY = 4, 1

#: Steps of a physical plan that take every record of one input, once, whatever follows them.
_NARROW = frozenset(
    {
        *("Project", "Filter", "Generate", "Coalesce", "CollectMetrics"),
        *("BatchEvalPython", "ArrowEvalPython", "ColumnarToRow"),
    }
)
#: A step but the first is drawn below another; other lines go on with one's texts.
_BELOW = re.compile(r"[ :]*[+:]- ")
_STEP = re.compile(r"[ +-]*(?:\*\(\d+\) )?(\w+)")
_READS_KAFKA = re.compile(r" *\+- (?:\*\(\d+\) )?(?:BatchScan KafkaTable|Scan KafkaRelation)\b")


@dataclass(frozen=True)
class ReadCounts:
    """The records of some ranges. ``first_bad`` is JSON text about one of the bad ones; ``unknown``
    of the good ones have fields that the schema does not name, such as ``unknown_fields``.
    ``metrics`` is all that was counted, for those who asked for more.
    """

    records: int
    bytes: int
    key_bytes: int
    good: int
    bad: int
    skipped: int
    first_bad: str | None
    unknown: int
    unknown_fields: tuple[str, ...]
    metrics: Mapping[str, Any]

    @classmethod
    def of(cls, counted: dict[str, Any]) -> Self:
        """From the job's metrics."""
        named = {"unknown_fields": shown(counted), "metrics": counted}
        return cls(**{f.name: (counted | named)[f.name] for f in fields(cls)})


def counts(
    seen: ReadCounts,
    output: StagedOutput,
    entry: LedgerEntry,
    checksum: Checksum | None,
    dead_letters_checksum: Checksum | None,
) -> Counts:
    """Return what the checkpoint of ``entry`` read and staged.

    Raises:
        SparkJobError: the numbers of the read contradict each other.
    """
    if seen.records != seen.good + seen.bad + seen.skipped:
        raise SparkJobError(
            f"{seen.records} records were read, of which {seen.good} are good, {seen.bad} bad "
            f"and {seen.skipped} skipped: these numbers contradict each other. Nothing was "
            "committed. This is a fault of the engine; please report it with the records."
        )
    rows, dead = output.rows, output.dead_letters
    assert rows is not None, "one table's rows"
    return Counts(
        records=seen.records,
        bytes=seen.bytes,
        key_bytes=seen.key_bytes,
        tombstones=seen.skipped,
        rows=rows.rows,
        dead_letters=dead.rows if dead else 0,
        rows_total=entry.counts.rows_total + rows.rows,
        unknown=seen.unknown,
        unknown_fields=seen.unknown_fields,
        checksum=checksum,
        dead_letters_checksum=dead_letters_checksum,
    )


class SourceCounter:
    """One read of ``ranges``, counted on its way into a transform, which gets :attr:`good`; or,
    if nothing is ``transformed``, with the rows that are staged: a :class:`RowCounter` of
    :attr:`rows`.
    """

    def __init__(
        self, decoded: Decoded, ranges: Sequence[OffsetRange], *, transformed: bool
    ) -> None:
        self._decoded = decoded
        self._ranges = ranges
        self._observed = None
        self.rows = None
        if transformed:
            self._observed = Observed(decoded.trimmed, *decoded.metrics(), *sums())
            self.good = decoded.good(self._observed.frame)
        else:
            # a plan of our own takes every record once
            self.rows = decoded.rows()
            self.good = decoded.good(decoded.trimmed, whole=False)

    def seen(self, result: RowCounter) -> ReadCounts:
        """Return the counts of the read, after the action on ``result``, which is built from
        :attr:`good`.
        """
        return ReadCounts.of(self._believed(result) or self._counted_again())

    def _believed(self, result: RowCounter) -> dict[str, Any] | None:
        if self._observed is None:
            return dict(result.seen)
        counted = self._observed.metrics(result.frame, _READING_SECONDS)
        if counted is None or counted[ACTION] != result.action:
            return None
        if are_whole(self._ranges, counted["records"], counted):
            return dict(counted)
        return dict(counted) if is_narrow(result.frame) else None

    def _counted_again(self) -> dict[str, Any]:
        metrics = self._decoded.trimmed.agg(*self._decoded.metrics())
        row = interruptible(metrics.sparkSession, metrics.first)
        assert row is not None, "an aggregation without groups has one row"
        return row.asDict()


class CountedColumn(NamedTuple):
    """A column that rows have while they are counted and never afterwards: ``value`` is made once
    for each row, and ``metrics`` are of the column ``name``.
    """

    name: str
    value: Column
    metrics: Sequence[Column]


class RowCounter:
    """The rows to be staged, counted by the one action on :attr:`frame`, which ``finish`` makes of
    ``rows``, each of one; with the metrics of ``marks`` besides, for :attr:`seen`, and those of
    ``rows`` which are mixed with bad records: these go no further. See :class:`Observed` for
    ``names``.
    """

    def __init__(
        self,
        rows: DataFrame | Rows,
        finish: Callable[[DataFrame], DataFrame],
        marks: Sequence[CountedColumn] = (),
        names: int = NAMES_OF_FILES,
    ) -> None:
        mixed = rows if isinstance(rows, Rows) else None
        frame = rows.frame if isinstance(rows, Rows) else rows
        values = {mark.name: mark.value for mark in marks}
        metrics = [metric for mark in marks for metric in mark.metrics]
        one, beside = F.lit(1), list(values)
        if mixed is not None:
            one = F.when(mixed.is_good, one)
            values = {name: F.when(mixed.is_good, value) for name, value in values.items()}
            metrics += mixed.metrics
            beside += mixed.columns
        marked = frame.withColumns(values) if values else frame
        self._observed = Observed(marked, F.count(one).alias("rows"), *metrics, times=names)
        counted = self._observed.frame
        self.frame = finish((counted.where(mixed.is_good) if mixed else counted).drop(*beside))
        self.rows = 0
        self.seen: Mapping[str, Any] = {}
        #: which action it was; see :data:`eo_pipeline.spark.ACTION`
        self.action: str | None = None

    def was_counted(self) -> bool:
        """The action on :attr:`frame` is over: whether :attr:`rows` and :attr:`action` are known.

        They may not be, where a Spark Connect server has much else to do.
        """
        counted = self._observed.metrics(self.frame, _RESULT_SECONDS)
        if counted is not None:
            self.rows, self.action, self.seen = counted["rows"], counted[ACTION], counted
        return counted is not None


def is_narrow(frame: DataFrame) -> bool:
    """Return whether ``frame`` is one read of Kafka and a chain of steps that each take every
    record once.

    Told by Spark's own words for its plan. Words that are not known, or no words, mean no.
    """
    try:
        lines = explained(frame).strip().splitlines()[1:]
    except PySparkException:
        return False
    plan = [*lines[:1], *filter(_BELOW.match, lines[1:])]
    steps = [step[1] if (step := _STEP.match(line)) else "" for line in plan[:-1]]
    return bool(plan) and _NARROW.issuperset(steps) and bool(_READS_KAFKA.match(plan[-1]))


def refuse_other_rows(rows: int, staged: StagedTable, checkpoint: int) -> None:
    """Return if as many rows are ``staged`` as the job of ``checkpoint`` ``rows``.

    Raises:
        SparkJobError: there are others, in a bucket.
        SetupError: there are others, in a folder: not the one that the executors see.
    """
    if rows == staged.rows:
        return
    where = f"in the files below {staged.root}" if staged.root else "in what came to this process"
    message = f"the Spark job of checkpoint {checkpoint} made {rows} rows, and {staged.rows} are"
    if isinstance(staged.root, RemotePath):
        raise SparkJobError(
            f"{message} {where}: an executor that Spark gave up was at work on them after all. "
            "Nothing was committed; run again."
        )
    raise SetupError(
        f"{message} {where}. Nothing was committed. Spark's executors and this process must see "
        "one and the same staging folder: set Pipeline.staging (for a lake table, its path) "
        "to a bucket, or to a folder that all of them share."
    )
