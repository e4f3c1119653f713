"""Records decoded by the tasks that read them: the Java side of a read, and what it counts.

An ordinary record is read in one pass, by ``OrdinaryJson.java`` or ``OrdinaryWritten.java``. Any
other one is judged in its place (``Judge.java``) by the expressions of
:mod:`eo_pipeline.batch.decode`: they are a temporary view, which the tasks evaluate record by
record, so that good and bad are defined in one place. Bad records are counted, and become dead
letters, where they are read. Protobuf has no such expressions: a batch with a record that is not
ordinary is decoded by Python.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self
from weakref import WeakKeyDictionary

from pyspark.sql import DataFrame, Row, SparkSession
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

from eo_pipeline._lazy import pa, pq
from eo_pipeline.batch import checksum, decode_avro, decode_protobuf
from eo_pipeline.batch.checksum import HashedRows
from eo_pipeline.batch.counting import ReadCounts
from eo_pipeline.batch.decode import decode, key_names, key_schema, refuse_common_names
from eo_pipeline.batch.decode_json import is_native, native_parameters, read_as
from eo_pipeline.batch.read import condition_columns, hide_secrets, range_options, tasks_for
from eo_pipeline.batch.spark_schema import typed_source, value_schema
from eo_pipeline.batch.unknown_fields import NAMES_MAX
from eo_pipeline.errors import SparkJobError
from eo_pipeline.formats import wire_format
from eo_pipeline.formats.parts import VALUE
from eo_pipeline.formats.wire_format import ReadSchemas
from eo_pipeline.kafka.planner import Tasks
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import START_VERSION, Checksum, LedgerEntry
from eo_pipeline.sinks.config import Sink
from eo_pipeline.spark import (
    interruptible,
    options_of,
    parquet_options,
    path_to_write,
    session_on_server,
)
from eo_pipeline.spark.native_jar import FUNCTION_CATALOG
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

#: Settings of a source that decide what its records are.
_DECIDE = {
    *("value_format", "value_schema", "message", "unknown_fields", "tombstones", "schema_changes"),
    *("key_format", "key_schema", "key_message", "key_prefix"),
}

_SUMMED = ("records", "bytes", "key_bytes", "good", "bad", "skipped")


#: Checkpoints that are treated like the one before, whose records are likely alike; and the number
#: of ledgers remembered.
_ALIKE, _LEDGERS_MAX = 16, 10_000


class Recently:
    """Tables of which one of the last checkpoints was unusual, by their ledgers."""

    def __init__(self) -> None:
        self._left: dict[tuple[str, str], int] = {}

    def note(self, entry: LedgerEntry, sink: Sink) -> None:
        """Remember the table for the next checkpoints of ``entry``'s ledger."""
        while len(self._left) >= _LEDGERS_MAX:
            self._left.pop(next(iter(self._left)), None)
        self._left[entry.ledger_id, sink.table_name] = _ALIKE

    def has(self, entry: LedgerEntry, sink: Sink) -> bool:
        """Return whether the table is remembered, for one checkpoint less."""
        key = entry.ledger_id, sink.table_name
        left = self._left.pop(key, 0)
        if left > 1:
            self._left[key] = left - 1
        return left > 0


#: Tables with records that are not ordinary.
judged = Recently()


def needs_judge(
    entry: LedgerEntry, source: KafkaSource, sink: Sink, attempt: Attempt | None, *, had_bad: bool
) -> bool:
    """Return whether some of ``entry``'s records are likely to be judged, so that a read without a
    judge would be in vain; ``had_bad``: the checkpoint before had bad records.

    A first checkpoint, of dead letters and in files, may have any: a judge costs it a third of a
    second in a new process, and a read in vain seconds.
    """
    is_first = (
        entry.version == START_VERSION + 1
        and attempt is not None
        and source.on_bad_record != "fail"
    )
    return judged.has(entry, sink) or had_bad or is_first


class Judge(NamedTuple):
    """A temporary view of what is made of a record: its name, the columns of a good record and of
    a dead letter, those of the letter's checksum, the schemas that records are read with, and the
    plans of ``OrdinaryWritten.java`` for values by these. The name is None where Python would be
    the judge.
    """

    view: str | None
    columns: StructType
    letters: StructType
    hashed: Mapping[str, Any]
    schemas: ReadSchemas
    plans: Sequence[Mapping[str, Any]]


class Ordinary(NamedTuple):
    """Records that are read in one pass: the fields of values and keys, and all columns."""

    value: StructType
    key: StructType
    columns: StructType

    @classmethod
    def of(cls, source: KafkaSource) -> Self | None:
        """Return those of ``source``; None if all of its records are judged.

        Raises:
            ConfigError: a column of the key has the name of one of the value.
        """
        value, key = cls._value(source), key_schema(source)
        if value is None or key is None or not is_native(key):
            return None
        names = key_names(source, key)
        refuse_common_names(names, value.names)
        named = [*zip(value.names, value, strict=True), *zip(names, key, strict=True)]
        return cls(value, key, StructType([StructField(n, f.dataType) for n, f in named]))

    @staticmethod
    def _value(source: KafkaSource) -> StructType | None:
        if source.value_format == "raw":
            return StructType().add("value", BinaryType())
        if source.value_format != "json" or source.by_registry(VALUE) or source.keeps_unknown:
            return None
        return value if is_native(value := value_schema(source)) else None


#: Of more than one record: the time of the query, and what differs at each evaluation.
_OF_MORE = re.compile(
    r"\b(now|current_\w+|localtimestamp|rand\w*|uuid|shuffle|monotonically_\w+)\b",
    re.IGNORECASE,
)

#: Function of Spark that makes a map of texts of headers.
_HEADER_TEXTS = f"{FUNCTION_CATALOG}.texts.headers"

#: Views of conditions.
_conditions: WeakKeyDictionary[SparkSession, set[str]] = WeakKeyDictionary()

#: By what decides them.
_judges: WeakKeyDictionary[SparkSession, dict[str, Judge]] = WeakKeyDictionary()


@dataclass(frozen=True)
class NativeDecoder:
    """Decodes the records of ``source`` in the tasks that read them. Without a ``judge`` they stop
    at the first record that is not ordinary.
    """

    source: KafkaSource
    ordinary: Ordinary | None
    judge: Judge | None
    #: SQL condition on which a record is read at all; see :func:`is_of_one_record`
    where: str | None = None

    @property
    def columns(self) -> StructType:
        """Columns of a good record."""
        reads = self.judge or self.ordinary
        assert reads is not None, "there is one of them"
        return reads.columns

    @property
    def reads_headers(self) -> bool:
        """True if reading needs the records' headers."""
        return self.judge is not None or mentions_headers(self.where)

    @property
    def schemas(self) -> ReadSchemas | None:
        """The schemas that records are read with; None if there are none, or no judge."""
        return self.judge.schemas if self.judge else None

    @classmethod
    def of(
        cls,
        spark: SparkSession,
        source: KafkaSource,
        sink: Sink,
        *,
        judges: bool,
        schemas: ReadSchemas | None = None,
        where: str | None = None,
    ) -> Self | None:
        """Return the decoder of a source, whose registry has the ``schemas``; None if its records
        are decoded by Spark's plan. ``judges``: although all may be ordinary.
        """
        source = typed_source(source)
        if source.key_format == "protobuf" or (judges and _is_judged_by_python(source)):
            return None
        ordinary = Ordinary.of(source)
        decoder = cls(source, ordinary, None, where)
        if judges or ordinary is None:
            decoder = decoder.reading(spark, sink, schemas)
        return decoder if decoder.can_judge or decoder._ordinary_options() else None

    @property
    def can_judge(self) -> bool:
        """True if tasks judge records, or would with a judge."""
        return not _is_judged_by_python(self.source)

    @property
    def judges(self) -> bool:
        """True if tasks judge records."""
        return self.judge is not None and self.judge.view is not None

    def reading(self, spark: SparkSession, sink: Sink, schemas: ReadSchemas | None) -> Self:
        """Return a copy whose judge reads records with ``schemas``."""
        judge = _judge(spark, self.source, sink, schemas, native=self.ordinary is None)
        return replace(self, judge=judge)

    def options(
        self,
        spark: SparkSession,
        entry: LedgerEntry,
        attempt: Attempt | None,
        tasks: Tasks,
        record_bytes: float | None,
    ) -> dict[str, str]:
        """Return the options of a data source that reads ``entry.ranges`` by ``tasks`` and decodes
        them.
        """
        options = self.options_of_read(spark, entry, tasks, record_bytes)
        return options | self.decode_options(spark, entry, attempt)

    def options_of_read(
        self, spark: SparkSession, entry: LedgerEntry, tasks: Tasks, record_bytes: float | None
    ) -> dict[str, str]:
        """Return those of :meth:`options` that say which records are read."""
        options = read_options(self.source, entry, tasks, record_bytes, headers=self.reads_headers)
        if self.where is not None:
            # a comment may end it
            condition = f"coalesce(({self.where}\n), false)"
            options["eo.where"] = view_of_conditions(spark, [condition])
        return options

    def decode_options(
        self, spark: SparkSession, entry: LedgerEntry, attempt: Attempt | None
    ) -> dict[str, str]:
        """Return those of :meth:`options` that say how a record is decoded."""
        source = self.source
        options = {
            "eo.columns": self.columns.json(),
            "eo.skips_tombstones": str(source.tombstones == "skip").lower(),
            "eo.fails_unknown": str(source.unknown_fields == "fail").lower(),
            "eo.checkpoint": str(entry.checkpoint),
        }
        options |= self._ordinary_options()
        if self.judge is None:
            return options
        options["eo.schemas"] = str(len(self.judge.schemas.by_registry))
        if self.judge.view is None:
            return options
        options["eo.judge"] = self.judge.view
        if attempt is not None and source.on_bad_record != "fail":
            options |= {
                "eo.letters": path_to_write(attempt.dead_letters_folder()),
                "eo.letters_columns": self.judge.letters.json(),
                "eo.letters_most": str(source.dead_letter_limit + 1),
                **hadoop_options(spark, attempt.dead_letters_folder()),
            }
        return options

    def _ordinary_options(self) -> dict[str, str]:
        """Return the options of what reads records in one pass."""
        source, ordinary = self.source, self.ordinary
        if ordinary is not None:
            value, key = ordinary.value, ordinary.key
            is_raw = source.value_format == "raw"
            options = {"eo.read": "" if is_raw else native_parameters(value, read_as(value))}
        else:
            key_or_none, judge = key_schema(source), self.judge
            if judge is None or not judge.plans or key_or_none is None:
                return {}
            if not is_native(key_or_none):
                return {}
            key, values = key_or_none, judge.schemas.value
            assert values is not None, "the plans are for them"
            plans = {
                "columns": len(self.columns) - len(key),
                "header": values.part.header if values.has_keys else None,
                "writers": judge.plans,
            }
            options = {"eo.read_written": json.dumps(plans)}
        options["eo.fields"] = str(len(self.columns) - len(key))
        if source.key_format == "text":
            options["eo.read_key"] = ""
        elif len(key):
            options["eo.read_key"] = native_parameters(key, read_as(key))
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


_ORDINARY_WRITERS = {
    "avro": decode_avro.ordinary_writers,
    "protobuf": decode_protobuf.ordinary_writers,
}


def _is_judged_by_python(source: KafkaSource) -> bool:
    return source.value_format == "protobuf"


def read_counts(
    parts: Sequence[Mapping[str, Any]], schemas: ReadSchemas | None = None
) -> ReadCounts:
    """Return the counts of the read from those of its tasks, by ``schemas``."""
    metrics = dict[str, Any]()
    for i, of_part in enumerate(schemas.by_registry if schemas else ()):
        met = [part["schemas"][i] for part in parts]
        writers = {index for schemas_met in met for index in schemas_met["writers"]}
        strangers = {key for schemas_met in met for key in schemas_met["strangers"]}
        metrics |= wire_format.counted_metrics(of_part, writers, strangers)
    sums = {name: sum(part[name] for part in parts) for name in (*_SUMMED, "unknown")}
    bad = [part["first_bad"] for part in parts if part["first_bad"]]
    names = {name for part in parts for name in part["unknown_fields"]}
    return ReadCounts(
        **sums,
        first_bad=min(bad, default=None),
        unknown_fields=tuple(sorted(names)[:NAMES_MAX]),
        metrics=metrics,
    )


def read_options(
    source: KafkaSource,
    entry: LedgerEntry,
    tasks: Tasks,
    record_bytes: float | None,
    *,
    headers: bool,
) -> dict[str, str]:
    """Return the options of a data source of this package that reads ``entry.ranges`` by ``tasks``,
    with the records' ``headers``.
    """
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
    options["includeHeaders"] = str(headers).lower()
    if tasks.shared_by is not None:
        options["eo.tasks"] = str(tasks.shared_by)
    return options


def results_of(
    spark: SparkSession, data_source: str, options: Mapping[str, str], attempt: Attempt | None
) -> list[Row]:
    """Return the rows of a data source whose tasks stage files for ``attempt``."""
    if attempt and (session := session_on_server(spark)):
        attempt.runs_in(session)
    hide_secrets(spark)
    rows = spark.read.format(data_source).options(**options).load()
    return interruptible(spark, rows.collect, attempt.name if attempt else None)


def hadoop_options(spark: SparkSession, folder: Place | None) -> dict[str, str]:
    """Return the options of files in ``folder``, as our data sources take them."""
    options = {**parquet_options(spark), **(options_of(folder) if folder else {})}
    return {f"eo.hadoop.{name}": value for name, value in options.items()}


def row_options(spark: SparkSession, attempt: Attempt | None) -> dict[str, str]:
    """Return the options of the files of rows, as our data sources take them; without an
    ``attempt`` their tasks return the files.
    """
    folder = attempt.rows_folder() if attempt else None
    options = hadoop_options(spark, folder)
    return options if folder is None else options | {"eo.folder": path_to_write(folder)}


def staged_rows(results: Sequence[Row], schema: pa.Schema, attempt: Attempt | None) -> StagedTable:
    """Return the rows in the files that the ``results`` of a data source name, or hold."""
    if attempt is not None:
        names = {row["file"] for row in results if row["file"]}
        return attempt.collect(attempt.rows_folder(), lambda: schema, names)
    # a dataset, which read_table makes, would load pandas: a fifth of a second in a new process
    files = [pq.ParquetFile(pa.BufferReader(row["held"])).read() for row in results if row["held"]]
    tables = [table.cast(schema) for table in files]
    return StagedTable.in_memory(pa.concat_tables(tables) if tables else schema.empty_table())


def is_of_one_record(where: str | None) -> bool:
    """Return whether the condition ``where`` of a table follows from a record alone, so that the
    tasks that read it can evaluate it.
    """
    return where is None or _OF_MORE.search(where) is None


def mentions_headers(where: str | None) -> bool:
    """Return whether the condition may be of headers."""
    return where is not None and ("headers" in where.lower() or "*" in where)


def view_of_conditions(spark: SparkSession, conditions: Sequence[str]) -> str:
    """Return the name of a temporary view with a column for each of the SQL expressions, what they
    say of a record; tasks evaluate it.
    """
    view = f"_eo_where_{hashlib.sha256(json.dumps(conditions).encode()).hexdigest()[:16]}"
    views = _conditions.setdefault(spark, set())
    if view not in views:
        headers = F.call_function(_HEADER_TEXTS, F.col("headers"))
        records = _shape(spark).withColumns(condition_columns() | {"headers": headers})
        columns = [F.expr(condition).alias(f"c{n}") for n, condition in enumerate(conditions)]
        records.select(*columns).createOrReplaceTempView(view)
        views.add(view)
    return view


def _shape(spark: SparkSession) -> DataFrame:
    """Return what stands for the records in a view that tasks evaluate."""
    return spark.read.format(FORMAT).options(**{"eo.schema": RECORD.json()}).load()


def _judge(
    spark: SparkSession,
    source: KafkaSource,
    sink: Sink,
    schemas: ReadSchemas | None,
    *,
    native: bool,
) -> Judge:
    """Return the judge of the records of ``source``; made once in a session. ``native``: JSON by a
    function of this package, where no record was read in one pass before.
    """
    known = _judges.setdefault(spark, {})
    decides = source.model_dump(mode="json", include=_DECIDE) | {
        "hashed": [field.name for field in RECORD if sink.gives_back(field.dataType)],
        "schemas": [
            [part.reader, part.writers, dict(part.texts), part.unknown, part.quarantined]
            for part in (schemas.parts if schemas else ())
        ],
    }
    text = json.dumps(decides)
    if text not in known:
        view = f"_eo_judge_{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        known[text] = _made(spark, source, sink, schemas, view, native=native)
    return known[text]


def _made(
    spark: SparkSession,
    source: KafkaSource,
    sink: Sink,
    schemas: ReadSchemas | None,
    view: str,
    *,
    native: bool,
) -> Judge:
    decoded = decode(_shape(spark), source, schemas, native=native)
    verdicts, letters = decoded.verdicts(), decoded.dead_letters(0)
    row = verdicts.schema["row"].dataType
    assert isinstance(row, StructType)
    values = decoded.schemas.value
    ordinary = _ORDINARY_WRITERS.get(source.value_format) if values else None
    plans = ordinary(values) if ordinary and values else ()
    if _is_judged_by_python(source):
        return Judge(None, row, letters.schema, {}, decoded.schemas, plans)
    hashed = HashedRows.of_dead_letters(letters, sink)
    _verdicts(verdicts, hashed).createOrReplaceTempView(view)
    columns = hashed.columns if hashed else {}
    return Judge(view, row, letters.schema, columns, decoded.schemas, plans)


def _verdicts(verdicts: DataFrame, hashed: HashedRows | None) -> DataFrame:
    """Return ``Decoded.verdicts`` as ``RecordDecoder.java`` takes them."""
    met = [name for name in verdicts.columns if name.startswith(("writer_", "stranger_"))]
    other = {"row", "unknown", "shown", *met}
    letter = [name for name in verdicts.columns if name not in other]
    value = F.lit(0).cast("bigint") if hashed is None else hashed.mark.value
    is_bad = F.col("error").isNotNull()
    return verdicts.select(
        "row",
        "unknown",
        "error",
        "shown",
        F.when(is_bad, F.struct(*letter)).alias("letter"),
        F.when(is_bad, value).alias("hash"),
        *met,
    )
