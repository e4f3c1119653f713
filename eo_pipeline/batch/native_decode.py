"""Records decoded by the tasks that read them: the Java side of a read, and what it counts.

An ordinary JSON record is read in one pass by ``OrdinaryJson.java``. Any other one is judged in its
place (``Judge.java``) by the expressions of :mod:`eo_pipeline.batch.decode`: they are a temporary
view, which the tasks evaluate record by record, so that good and bad are defined in one place. Bad
records are counted, and become dead letters, where they are read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from eo_pipeline.batch import checksum
from eo_pipeline.batch.checksum import HashedRows
from eo_pipeline.batch.counting import ReadCounts
from eo_pipeline.batch.decode import decode
from eo_pipeline.batch.decode_json import is_native, native_parameters, read_as
from eo_pipeline.batch.read import range_options, tasks_for
from eo_pipeline.batch.spark_schema import typed_source, value_schema
from eo_pipeline.batch.unknown_fields import NAMES_MAX
from eo_pipeline.errors import SparkJobError
from eo_pipeline.kafka.planner import Tasks
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import Checksum, LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.spark import options_of, parquet_options, path_to_write
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedTable
from eo_pipeline.storage.paths import Place

#: Data source of decoded records; without the name of totals it has the columns of its ``schema``.
FORMAT = "eo.pipeline.DecodedRanges"

_HEADERS = ArrayType(StructType().add("key", StringType()).add("value", BinaryType()))

#: Columns of Spark's Kafka source.
RECORD = (
    StructType()
    .add("key", BinaryType())
    .add("value", BinaryType())
    .add("topic", StringType())
    .add("partition", IntegerType())
    .add("offset", LongType())
    .add("timestamp", TimestampType())
    .add("timestampType", IntegerType())
    .add("headers", _HEADERS)
)

_SUMMED = ("records", "bytes", "key_bytes", "good", "bad", "skipped")


class Judge(NamedTuple):
    """A temporary view of what is made of a record: its name, the columns of a good record and of
    a dead letter, and those of the letter's checksum.
    """

    view: str
    columns: StructType
    letters: StructType
    hashed: Mapping[str, Any]


#: By what decides them.
_judges: WeakKeyDictionary[SparkSession, dict[str, Judge]] = WeakKeyDictionary()


@dataclass(frozen=True)
class NativeDecoder:
    """Decodes the records of ``source`` in the tasks that read them. Without a ``judge`` they stop
    at the first record that is not ordinary.
    """

    source: KafkaSource
    columns: StructType
    judge: Judge | None

    @classmethod
    def of(
        cls, spark: SparkSession, source: KafkaSource, sink: Sink, *, judges: bool
    ) -> Self | None:
        """Return the decoder of a source; None if its records are decoded by Spark's plan."""
        source = typed_source(source)
        if not can_decode(source):
            return None
        columns = StructType([StructField(f.name, f.dataType) for f in value_schema(source)])
        judge = _judge(spark, source, sink) if judges else None
        return cls(source, judge.columns if judge else columns, judge)

    def options(
        self,
        spark: SparkSession,
        entry: LedgerEntry,
        attempt: Attempt | None,
        tasks: Tasks,
        record_bytes: float | None,
    ) -> dict[str, str]:
        """Return the options of a data source that reads ``entry.ranges``, by ``tasks``."""
        source, fields = self.source, value_schema(self.source)
        tasks = tasks_for(source, tasks)
        options = range_options(
            source,
            entry.ranges,
            pipeline=entry.pipeline,
            topic_ids=entry.topic_ids,
            partition_count=max(len(entry.offsets), len(entry.ranges)),
            tasks=tasks,
            record_bytes=record_bytes,
        )
        options |= {
            "includeHeaders": str(self.judge is not None).lower(),
            "eo.columns": self.columns.json(),
            "eo.read": native_parameters(fields, read_as(fields)),
            "eo.skips_tombstones": str(source.tombstones == "skip").lower(),
            "eo.fails_unknown": str(source.unknown_fields == "fail").lower(),
            "eo.checkpoint": str(entry.checkpoint),
        }
        if tasks.shared_by is not None:
            options["eo.tasks"] = str(tasks.shared_by)
        if self.judge is not None:
            options["eo.judge"] = self.judge.view
        if self.judge is not None and attempt is not None and source.on_bad_record != "fail":
            options |= {
                "eo.letters": path_to_write(attempt.dead_letters_folder()),
                "eo.letters_columns": self.judge.letters.json(),
                "eo.letters_most": str(source.dead_letter_limit + 1),
                **hadoop_options(spark, attempt.dead_letters_folder()),
            }
        return options

    def dead_letters(
        self, parts: Sequence[Mapping[str, Any]], seen: ReadCounts, attempt: Attempt | None
    ) -> tuple[StagedTable | None, Checksum | None]:
        """Return the dead letters that the tasks wrote, and their checksum.

        Raises:
            SparkJobError: there are not as many as bad records.
        """
        if not seen.bad:
            return None, None
        assert self.judge is not None, "without one no record is bad"
        assert attempt is not None, "dead letters are in files"
        files = {part["letters"] for part in parts if part.get("letters")}
        schema = to_arrow_schema(self.judge.letters)
        table = attempt.collect(attempt.dead_letters_folder(), lambda: schema, files)
        if table.rows != seen.bad:
            raise SparkJobError(
                f"{seen.bad} bad records were counted, and the files have {table.rows}. Nothing "
                "was committed; run again."
            )
        hashed = self.judge.hashed
        sums = (checksum.summed(part["letters_hashes"]) for part in parts if part.get("letters"))
        return table, checksum.checksum(hashed, checksum.total(sums)) if hashed else None


def can_decode(source: KafkaSource) -> bool:
    """Return whether the tasks can decode the records of ``source``."""
    is_json = source.value_format == "json" and source.key_format == "raw"
    if not is_json or source.registry is not None or source.keeps_unknown:
        return False
    return is_native(value_schema(source))


def read_counts(parts: Sequence[Mapping[str, Any]]) -> ReadCounts:
    """Return the counts of the read from those of its tasks."""
    sums = {name: sum(part[name] for part in parts) for name in (*_SUMMED, "unknown")}
    bad = [part["first_bad"] for part in parts if part["first_bad"]]
    names = {name for part in parts for name in part["unknown_fields"]}
    return ReadCounts(
        **sums,
        first_bad=min(bad, default=None),
        unknown_fields=tuple(sorted(names)[:NAMES_MAX]),
        metrics={},
    )


def hadoop_options(spark: SparkSession, folder: Place | None) -> dict[str, str]:
    """Return the options of files in ``folder``, as our data sources take them."""
    options = {**parquet_options(spark), **(options_of(folder) if folder else {})}
    return {f"eo.hadoop.{name}": value for name, value in options.items()}


def _judge(spark: SparkSession, source: KafkaSource, sink: Sink) -> Judge:
    """Return the judge of the records of ``source``; made once in a session."""
    known = _judges.setdefault(spark, {})
    names = ("value_schema", "unknown_fields", "tombstones")
    decides: dict[str, Any] = {name: getattr(source, name) for name in names}
    decides["hashed"] = [field.name for field in RECORD if sink.gives_back(field.dataType)]
    text = json.dumps(decides)
    if text not in known:
        view = f"_eo_judge_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        known[text] = _made(spark, source, sink, view)
    return known[text]


def _made(spark: SparkSession, source: KafkaSource, sink: Sink, view: str) -> Judge:
    shape = spark.read.format(FORMAT).options(**{"eo.schema": RECORD.json()}).load()
    decoded = decode(shape, source)
    letters = decoded.dead_letters(0)
    hashed = HashedRows.of_dead_letters(letters, sink)
    verdicts = _verdicts(decoded.verdicts(), hashed)
    verdicts.createOrReplaceTempView(view)
    row = verdicts.schema["row"].dataType
    assert isinstance(row, StructType)
    return Judge(view, row, letters.schema, hashed.columns if hashed else {})


def _verdicts(verdicts: DataFrame, hashed: HashedRows | None) -> DataFrame:
    """Return ``Decoded.verdicts`` as ``RecordDecoder.java`` takes them."""
    letter = [name for name in verdicts.columns if name not in ("row", "unknown", "shown")]
    value = F.lit(0).cast("bigint") if hashed is None else hashed.mark.value
    is_bad = F.col("error").isNotNull()
    return verdicts.select(
        "row",
        "unknown",
        "error",
        "shown",
        F.when(is_bad, F.struct(*letter)).alias("letter"),
        F.when(is_bad, value).alias("hash"),
    )
