"""Decoded source: the records of a batch that a transform changes, decoded where they are read.

Below the transform there is one data source of this package (``DecodedRanges.java``), which gives
good records as rows; above it the rows are counted by a function (``RowCounting.java``) and staged
by the tasks that make them (``StagedRows.java``). Between them is what Spark makes of the
transform, and nothing else. Each part of the work counts once, however often Spark does it
(``Totals.java``).
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from eo_pipeline.batch import checksum
from eo_pipeline.batch.checksum import HashedRows
from eo_pipeline.batch.counting import ReadCounts
from eo_pipeline.batch.decode import KAFKA_COLUMN
from eo_pipeline.batch.native_decode import (
    FORMAT,
    RECORD,
    NativeDecoder,
    read_counts,
    results_of,
    row_options,
    staged_rows,
)
from eo_pipeline.batch.output import PARQUET, marked, materialize
from eo_pipeline.batch.read import hide_secrets
from eo_pipeline.batch.validation import InvalidRows
from eo_pipeline.errors import TransformError
from eo_pipeline.ledger.entry import Checksum
from eo_pipeline.spark import (
    SPARK_ERRORS,
    interruptible,
    with_known_schema,
)
from eo_pipeline.spark.native_jar import FUNCTION_CATALOG, has_source
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedTable

_STAGED, _TOTALS = "eo.pipeline.StagedRows", "eo.pipeline.Totals"

#: Counts of the parts of a job.
Parts = list[dict[str, Any]]

log = logging.getLogger(__name__)

#: Kafka's part of a row, as ``Decoded.good`` gives it.
_KAFKA = StructType(
    [RECORD[name] for name in ("topic", "partition", "offset", "timestamp")]
    + [StructField("timestamp_type", RECORD["timestampType"].dataType)]
    + [RECORD[name] for name in ("key", "headers")]
)


#: Function of Spark that tells if a text is UTF-8.
IS_UTF8 = f"{FUNCTION_CATALOG}.texts.is_utf8"


def has_decoded_source(spark: SparkSession) -> bool:
    """Return whether ``spark`` has the data sources of this module; cached."""
    return has_source(spark, _STAGED)


class JudgeNeededError(Exception):
    """A record is not ordinary, and nothing judges it."""


@dataclass(frozen=True)
class DecodedSource:
    """The records of a batch: ``frame`` has the good ones; lazy."""

    frame: DataFrame
    decoder: NativeDecoder
    options: Mapping[str, str]
    #: name of the totals of what is read
    totals: str

    @classmethod
    def of(
        cls, spark: SparkSession, decoder: NativeDecoder, options: Mapping[str, str]
    ) -> DecodedSource:
        """Return the records that the ``options`` of ``decoder`` name."""
        totals = f"read-{uuid.uuid4().hex}"
        schema = StructType([*decoder.columns, StructField(KAFKA_COLUMN, _KAFKA, nullable=False)])
        ours = {"eo.schema": schema.json(), "eo.totals": totals}
        hide_secrets(spark)
        frame = spark.read.format(FORMAT).options(**{**options, **ours}).load()
        return cls(with_known_schema(frame, schema), decoder, options, totals)

    def counted(self) -> Parts:
        """Read all records, of which a transform did not take all, for their totals."""
        spark = self.frame.sparkSession
        again = DecodedSource.of(spark, self.decoder, self.options)
        interruptible(spark, again.frame.groupBy().count().collect)
        return _totals(spark, again.totals)

    @contextmanager
    def as_far_as_it_was_read(self) -> Iterator[None]:
        """Within the block, an error may be of the missing records behind one that needs a judge.

        Raises:
            JudgeNeededError: instead of the error, if there is such a record.
        """
        try:
            yield
        except (*SPARK_ERRORS, TransformError):
            if not self.decoder.judges:
                with suppress(*SPARK_ERRORS):  # Spark is lost
                    self.seen(_totals(self.frame.sparkSession, self.totals))
            raise

    def seen(self, parts: Parts) -> ReadCounts | None:
        """Return the counts of the read from the ``parts`` of its totals; None if not all records
        were read.

        Raises:
            JudgeNeededError: a task ended at a record that needs a judge.
        """
        if any(part.get("why") for part in parts):
            raise JudgeNeededError
        whole = next((part["parts"] for part in parts if "parts" in part), None)
        counted = [part for part in parts if "records" in part]
        return read_counts(counted, self.decoder.schemas) if whole == len(counted) else None


def _totals(spark: SparkSession, name: str) -> Parts:
    frame = spark.read.format(_TOTALS).options(**{"eo.totals": name}).load()
    return [json.loads(row["part"]) for row in interruptible(spark, frame.collect)]


class CountedRows:
    """The rows to be staged: :attr:`frame`, which ``finish`` makes of ``rows``, each of one; in
    files of the format :attr:`kind`, which say of columns what ``as_staged`` does. They are counted
    by the tasks that stage them; with the checksum of ``hashed``, and those that do not fit,
    ``why``.
    """

    def __init__(
        self,
        rows: DataFrame,
        finish: Callable[[DataFrame], DataFrame],
        hashed: HashedRows | None,
        why: Column | None,
        as_staged: Callable[[StructType], StructType] | None,
    ) -> None:
        self._totals = f"rows-{uuid.uuid4().hex}"
        origin = [F.lit(None).cast("string"), F.lit(0), F.lit(0).cast("bigint")]
        if KAFKA_COLUMN in rows.columns:
            origin = [F.col(KAFKA_COLUMN)[name] for name in ("topic", "partition", "offset")]
        counting = F.call_function(
            f"{FUNCTION_CATALOG}.rows.`{self._totals}`",
            F.lit(0).cast("bigint") if hashed is None else hashed.mark.value,
            F.lit(None).cast("string") if why is None else why,
            *origin,
        )
        frame = finish(rows.where(counting))
        self.frame, self.kind = marked(frame, as_staged) if as_staged else (frame, PARQUET)
        self.rows = 0
        self._hashed, self._hashes = hashed, checksum.NO_ROWS
        self.unfit: InvalidRows | None = None

    def stage(
        self, attempt: Attempt, layout: tuple[str, ...], read: str, mode: str
    ) -> tuple[StagedTable, Parts] | None:
        """Stage the rows in files of ``attempt``, laid out by the columns ``layout``; return also
        the totals of what was ``read``. None if Spark must stage them without us. ``mode``: where
        there are files already.
        """
        frame, kind, spark = self.frame, self.kind, self.frame.sparkSession
        if layout or kind != PARQUET:
            rows = materialize(frame, attempt, Attempt.rows_folder, layout, mode, kind)
            parts = _totals(spark, read) + _totals(spark, self._totals)
            self._count(parts)
            return rows, parts
        with ExitStack() as stack:
            totals = {"eo.totals": f"{read},{self._totals}"}
            results = results_of(
                spark, _STAGED, {**self.to_stage(attempt, stack), **totals}, attempt
            )
            stack.pop_all()
        return self.collected(results, attempt)

    def to_stage(self, attempt: Attempt | None, stack: ExitStack) -> dict[str, str]:
        """Return the options of a data source that stages the rows in Parquet files of ``attempt``,
        or in memory. They name a temporary view, which the data source drops; ``stack`` does if it
        is not read.
        """
        spark = self.frame.sparkSession
        view = f"_eo_{self._totals.replace('-', '_')}"
        self.frame.createOrReplaceTempView(view)
        stack.callback(spark.catalog.dropTempView, view)
        return {"eo.view": view, "eo.row_totals": self._totals, **row_options(spark, attempt)}

    def collected(
        self, results: Sequence[Row], attempt: Attempt | None
    ) -> tuple[StagedTable, Parts] | None:
        """Return what the tasks staged, of their ``results``; see :meth:`stage`."""
        if why := next((row["why"] for row in results if row["why"]), None):
            log.info("Spark stages the rows, because of %s", why)
            return None
        rows = staged_rows(results, to_arrow_schema(self.frame.schema), attempt)
        parts = [json.loads(row["part"]) for row in results if row["part"]]
        self._count(parts)
        return rows, parts

    def checksum(self) -> Checksum | None:
        """Return the checksum of the staged rows; None if they have none."""
        columns = self._hashed.columns if self._hashed else {}
        return checksum.checksum(columns, self._hashes) if columns else None

    def _count(self, all_parts: Parts) -> None:
        parts = [part for part in all_parts if "unfit" in part]
        sums = {name: sum(part[name] for part in parts) for name in ("rows", "unfit")}
        hashes = checksum.total(map(checksum.summed, parts))
        self.rows, self._hashes = sums["rows"], hashes
        example = next((part["example"] for part in parts if part["example"]), None)
        self.unfit = InvalidRows(sums["unfit"], example) if example else None
