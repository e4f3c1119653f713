"""Ordinary records of plain columns, staged by the tasks that read them.

Most batches need no plan of Spark's: every record is an ordinary one
(:mod:`eo_pipeline.batch.fast_json`), no transform changes it, and its columns are the table's. Then
one source of our own (``StagedRanges.java``) is all of Spark's job. Its tasks read Kafka by Spark's
own connector, decode, hash and write one Parquet file each, in one pass, and give one row that says
what they wrote and counted.

Nothing is judged there. At the first record that is not ordinary, or that makes a row some stores
do not take, the whole batch is left to :mod:`eo_pipeline.batch.stage`, which does it by Spark's
plan as ever; so what a bad record is, is said in one place.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from eo_pipeline._lazy import pa, pq
from eo_pipeline.batch import checksum
from eo_pipeline.batch.counting import refuse_other_rows
from eo_pipeline.batch.decode import KAFKA_COLUMN, LINEAGE
from eo_pipeline.batch.decode_json import read_as
from eo_pipeline.batch.fast_json import is_plain, named
from eo_pipeline.batch.output import OPTIONS_OF_PACKED, check_names
from eo_pipeline.batch.read import hide_secrets, range_options, tasks_for
from eo_pipeline.batch.spark_schema import value_schema
from eo_pipeline.kafka.planner import Tasks
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Counts, LedgerEntry
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.sinks.columns import JSON_OPTIONS, Documents, RowEncoding
from eo_pipeline.sinks.config import Sink
from eo_pipeline.spark import (
    interruptible,
    options_of,
    parquet_options,
    path_to_write,
    session_on_server,
    with_known_schema,
)
from eo_pipeline.spark.native_functions import has_function, has_source
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import PACKED_COLUMN, StagedOutput, StagedTable

log = logging.getLogger(__name__)

#: In the place of a column: what is made of the whole row, and the bytes of one column's text. As
#: ``Staging.java`` has them.
_WHOLE, _TEXT = -1, -2


@dataclass(frozen=True)
class Written:
    """``columns`` of a staged file; ``places`` say which of the row's columns each is. ``form`` is
    that of packed rows, see :class:`RowEncoding`. ``extra_options``: of its own.
    """

    columns: StructType
    places: tuple[int, ...]
    form: str | None = None
    extra_options: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, str]:
        """As ``StagedRanges.java`` is told."""
        return {
            "eo.written": self.columns.json(),
            "eo.places": ",".join(map(str, self.places)),
            "eo.document": "",
            **self.extra_options,
        }


def places(columns: StructType, names: Collection[str]) -> str:
    """Return the indexes of the columns with these ``names``."""
    return ",".join(str(columns.names.index(name)) for name in names)


def as_columns(columns: StructType) -> Written:
    """A row is staged as it is."""
    return Written(columns, tuple(range(len(columns))))


def as_packed(columns: StructType, packing: RowEncoding) -> Written:
    """One value that only the sink reads, and the columns beside it."""
    beside = [columns.names.index(name) for name in packing.beside]
    packed = StructField(PACKED_COLUMN, BinaryType(), nullable=False)
    written = StructType([packed, *(columns[place] for place in beside)])
    return Written(written, (_WHOLE, *beside), packing.form, {"eo.packs": "true"})


def as_documents(columns: StructType, documents: Documents) -> Written:
    """One JSON object, and the columns beside it."""
    options = {"eo.document": places(columns, documents.fields)}
    options |= {f"eo.json.{name}": value for name, value in JSON_OPTIONS.items()}
    written, of = [StructField(documents.column, StringType())], [_WHOLE]
    for name, column in documents.beside.items():
        place = columns.names.index(column)
        if name == documents.as_bytes:
            options["eo.text"] = str(place)
            written.append(StructField(name, BinaryType()))
            of.append(_TEXT)
        else:
            written.append(StructField(name, columns[place].dataType, columns[place].nullable))
            of.append(place)
    return Written(StructType(written), tuple(of), extra_options=options)


FORMAT = "eo.pipeline.StagedRanges"

_LINEAGE_TYPES = {"topic": StringType(), "partition": IntegerType(), "offset": LongType()}

#: What a task counts, but for the checksum.
_SUMMED = ("rows", "records", "bytes", "key_bytes", "skipped")

#: Checkpoints, by ledger, that are not tried: where one had records that are not ordinary, the next
#: ones have, too. Of so many ledgers it is known.
_PASSED_OVER, _KNOWN_MAX = 16, 10_000
_passed_over: dict[str, int] = {}

#: How tasks share ranges in a Spark, of topics of which so many partitions are known.
Share = Callable[[SparkSession, Sequence[OffsetRange], Collection[TopicPartition]], Tasks]


@dataclass(frozen=True)
class FastPath:
    """One pipeline's way around Spark's plan. ``source`` has its schema as JSON text, which Spark
    need not be asked about.
    """

    source: KafkaSource
    sink: Sink
    lineage: bool
    #: the table's columns that take no null
    never_null: Collection[str]
    #: whether rows may be staged in a form that only the sink reads
    packs: bool
    #: mean size of a record, in bytes, if it was measured
    record_bytes: float | None = None
    #: what a file's schema says besides, if files are marked
    as_staged: Callable[[StructType], StructType] | None = None

    @cached_property
    def columns(self) -> StructType | None:
        """Of the rows, as they are staged; None: they are not, or not known to be, as plain as
        they must be.
        """
        source, needs = self.source, self.sink.plain_rows_need()
        is_json = source.value_format == "json" and source.key_format == "raw"
        if not is_json or source.registry is not None or source.keeps_unknown or needs is None:
            return None
        if self.sink.partition_columns or not is_plain(fields := value_schema(source)):
            return None
        added = [StructField(CHECKPOINT_COLUMN, LongType(), nullable=False)]
        if self.lineage:
            added += [StructField(name, _LINEAGE_TYPES[of]) for name, of in LINEAGE.items()]
        return StructType([StructField(f.name, f.dataType) for f in fields] + added)

    def stage(
        self, spark: SparkSession, entry: LedgerEntry, attempt: Attempt | None, share: Share
    ) -> tuple[StagedOutput, Counts] | None:
        """See :meth:`eo_pipeline.batch.stage.Stager.stage`; ``share`` says how tasks share ranges.
        None: not by this way.
        """
        columns = self.columns
        if columns is None or _is_passed_over(entry) or not has_source(spark, FORMAT):
            return None
        written = self._written(spark, columns, in_files=attempt is not None)
        if written is None:
            return None
        tasks = tasks_for(self.source, share(spark, entry.ranges, entry.offsets))
        options = {
            **self._read(entry, tasks),
            **self._made(columns),
            **written.options(),
            **_files(spark, entry, attempt, written),
        }
        if attempt and (session := session_on_server(spark)):
            attempt.runs_in(session)
        hide_secrets(spark)
        rows = spark.read.format(FORMAT).options(**options).load()
        results = interruptible(spark, rows.collect, attempt.name if attempt else None)
        if why := next((row["why"] for row in results if row["why"]), None):
            log.info("%s: version %d has %s", entry.pipeline, entry.version, why)
            _pass_over(entry)
            return None
        return self._collected(results, columns, entry, attempt, written)

    def _written(
        self, spark: SparkSession, columns: StructType, *, in_files: bool
    ) -> Written | None:
        """As what rows with these ``columns`` are staged; None: the sink makes something else of
        them. It is asked without any rows.

        Raises:
            SchemaChangeError, RefusedError, ConfigError: see ``Sink.project``.
            TransformError: a column has a name that is taken.
        """
        names = [field.name for field in value_schema(self.source)]
        check_names([*names, KAFKA_COLUMN], lineage=self.lineage)
        none = with_known_schema(spark.createDataFrame([], columns), columns)
        projected = self.sink.project(none)
        if documents := self.sink.documents(columns):
            return as_documents(columns, documents)
        if projected is not none and projected.schema != columns:
            return None
        packing = self._packing(spark, columns) if in_files else None
        if packing:
            return as_packed(columns, packing)
        return as_columns(self.as_staged(columns) if in_files and self.as_staged else columns)

    def _packing(self, spark: SparkSession, columns: StructType) -> RowEncoding | None:
        packing = self.sink.packing(columns) if self.packs else None
        return packing if packing and has_function(spark, packing.trial) else None

    def _read(self, entry: LedgerEntry, tasks: Tasks) -> dict[str, str]:
        options = range_options(
            self.source,
            entry.ranges,
            pipeline=entry.pipeline,
            topic_ids=entry.topic_ids,
            partition_count=max(len(entry.offsets), len(entry.ranges)),
            tasks=tasks,
            record_bytes=self.record_bytes,
        )
        if tasks.shared_by is not None:
            options["eo.tasks"] = str(tasks.shared_by)
        return options | {"includeHeaders": "false"}

    def _made(self, columns: StructType) -> dict[str, str]:
        fields = value_schema(self.source)
        never = {name.lower() for name in (*self.never_null, *(self.sink.plain_rows_need() or ()))}
        needed = [name for name in columns.names if name.lower() in never]
        return {
            "eo.read": named(fields, read_as(fields)),
            "eo.rows": columns.json(),
            "eo.skips_tombstones": str(self.source.tombstones == "skip").lower(),
            "eo.needed": places(columns, needed),
            "eo.hashed": places(columns, sorted(self._hashed(columns))),
        }

    def _hashed(self, columns: StructType) -> dict[str, Any]:
        """The columns of which a checksum is made; see :mod:`eo_pipeline.batch.checksum`."""
        if not self.sink.keeps_every_row:
            return {}
        shape = StructType([field for field in columns if field.name != CHECKPOINT_COLUMN])
        return checksum.hashed_columns(shape, self.sink.gives_back)

    def _collected(
        self,
        results: Sequence[Row],
        columns: StructType,
        entry: LedgerEntry,
        attempt: Attempt | None,
        written: Written,
    ) -> tuple[StagedOutput, Counts]:
        schema = to_arrow_schema(columns if written.form else written.columns)
        rows = _held(results, schema) if attempt is None else _in_files(results, schema, attempt)
        if written.form is not None:
            rows = StagedTable(schema, rows.root, rows.files, form=written.form)
        sums = {name: sum(row[name] for row in results) for name in _SUMMED}
        refuse_other_rows(sums["rows"], rows, entry.checkpoint)
        hashed = self._hashed(columns)
        counts = Counts(
            records=sums["records"],
            bytes=sums["bytes"],
            key_bytes=sums["key_bytes"],
            tombstones=sums["skipped"],
            rows=rows.rows,
            rows_total=entry.counts.rows_total + rows.rows,
            unknown=0,
            checksum=checksum.checksum(hashed, _summed(results)) if hashed else None,
        )
        return StagedOutput(rows=rows), counts


def _files(
    spark: SparkSession, entry: LedgerEntry, attempt: Attempt | None, written: Written
) -> dict[str, str]:
    options, parquet = {"eo.checkpoint": str(entry.checkpoint)}, {**parquet_options(spark)}
    if attempt is not None:
        folder = attempt.rows_folder()
        options["eo.folder"] = path_to_write(folder)
        parquet |= options_of(folder)
    if written.form is not None:
        parquet |= OPTIONS_OF_PACKED
    return options | {f"eo.hadoop.{name}": value for name, value in parquet.items()}


def _in_files(results: Sequence[Row], schema: pa.Schema, attempt: Attempt) -> StagedTable:
    files = {row["file"] for row in results if row["file"]}
    return attempt.collect(attempt.rows_folder(), lambda: schema, files)


def _held(results: Sequence[Row], schema: pa.Schema) -> StagedTable:
    """Each row that says so holds a file."""
    # a dataset, which read_table makes, would load pandas: a fifth of a second in a new process
    files = [pq.ParquetFile(pa.BufferReader(row["held"])).read() for row in results if row["held"]]
    tables = [table.cast(schema) for table in files]
    return StagedTable.in_memory(pa.concat_tables(tables) if tables else schema.empty_table())


def _is_passed_over(entry: LedgerEntry) -> bool:
    left = _passed_over.pop(entry.ledger_id, 0)
    if left > 1:
        _passed_over[entry.ledger_id] = left - 1
    return left > 0


def _pass_over(entry: LedgerEntry) -> None:
    while len(_passed_over) >= _KNOWN_MAX:
        _passed_over.pop(next(iter(_passed_over)), None)
    _passed_over[entry.ledger_id] = _PASSED_OVER


def _summed(results: Sequence[Row]) -> checksum.Sums:
    total = checksum.NO_ROWS
    for row in results:
        part: Mapping[str, Any] = row.asDict()
        total = total.plus(checksum.summed(part))
    return total
