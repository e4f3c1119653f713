"""Fast path: flat JSON records, staged by the tasks that read them, without Spark's plan.

One data source of this package (``StagedRanges.java``) is the whole Spark job. Its tasks read Kafka
by Spark's own connector, decode, hash and write one Parquet file each, in one pass over the bytes,
and return one row of counts. It takes batches that no transform changes.

The tasks validate nothing. At the first record that the native JSON reader does not read, or that
makes a row some stores refuse, they stop, and :mod:`eo_pipeline.batch.stage` processes the whole
batch by Spark's plan, so that bad records are defined in one place.

:meth:`FastPath.of` is the only entrance: it knows of which pipelines rows can be staged so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from eo_pipeline._lazy import pa, pq
from eo_pipeline.batch import checksum
from eo_pipeline.batch.counting import refuse_other_rows
from eo_pipeline.batch.decode import KAFKA_COLUMN, LINEAGE
from eo_pipeline.batch.decode_json import is_flat, native_parameters, read_as
from eo_pipeline.batch.output import check_names
from eo_pipeline.batch.read import hide_secrets, range_options, tasks_for
from eo_pipeline.batch.spark_schema import value_schema
from eo_pipeline.kafka.planner import Tasks
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Counts, LedgerEntry
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.sinks.columns import JSON_OPTIONS, ColumnLimits, JsonRows
from eo_pipeline.sinks.config import Sink
from eo_pipeline.spark import (
    interruptible,
    options_of,
    parquet_options,
    path_to_write,
    session_on_server,
    with_known_schema,
)
from eo_pipeline.spark.native_jar import has_source
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedOutput, StagedTable

log = logging.getLogger(__name__)

FORMAT = "eo.pipeline.StagedRanges"

#: Years of the times that the tasks write, see ``RangeStager.java``.
_YEARS = (1600, 9999)

_LINEAGE_TYPES = {"topic": StringType(), "partition": IntegerType(), "offset": LongType()}

#: Sums of a task's counts; the checksum is added separately.
_SUMMED = ("rows", "records", "bytes", "key_bytes", "skipped")

#: Instead of a column's index: a value made of the whole row, and the bytes of one column's text;
#: equal to those in ``Staging.java``.
_WHOLE, _TEXT = -1, -2

#: Checkpoints, by ledger, that skip the fast path after one whose records it could not read, since
#: the next ones are likely alike; and the number of ledgers remembered.
_SKIPPED, _LEDGERS_MAX = 16, 10_000
_skipped: dict[str, int] = {}

#: Division of ranges among the tasks of a Spark; with all partitions of their topics.
Share = Callable[[SparkSession, Sequence[OffsetRange], Collection[TopicPartition]], Tasks]


@dataclass(frozen=True)
class FileColumns:
    """Columns of a staged file; ``indexes`` of the row's columns that they hold."""

    columns: StructType
    indexes: tuple[int, ...]
    extra_options: Mapping[str, str] = field(default_factory=dict)

    def options(self) -> dict[str, str]:
        """Options of ``StagedRanges.java``."""
        return {
            "eo.written": self.columns.json(),
            "eo.places": ",".join(map(str, self.indexes)),
            "eo.document": "",
            **self.extra_options,
        }


@dataclass(frozen=True)
class FastPath:
    """The fast path of one pipeline. ``columns`` are those of its rows; ``source`` has its schema
    as JSON text, which no Spark need parse.
    """

    source: KafkaSource
    sink: Sink
    columns: StructType
    #: columns that need a value, by the table or by the sink's limits; lower case
    needed: frozenset[str]
    lineage: bool
    #: mean size of a record, in bytes, if measured
    record_bytes: float | None
    #: adds metadata to the schemas of files, if the sink needs it
    as_staged: Callable[[StructType], StructType] | None

    @classmethod
    def of(
        cls,
        source: KafkaSource,
        sink: Sink,
        *,
        lineage: bool,
        never_null: Collection[str],
        record_bytes: float | None,
        as_staged: Callable[[StructType], StructType] | None,
    ) -> FastPath | None:
        """Return the fast path of a pipeline without a transform; None if its rows do not equal
        its records, or the sink's limits are unknown or narrower than those of the tasks.
        """
        is_json = source.value_format == "json" and source.key_format == "raw"
        if not is_json or source.registry is not None or source.keeps_unknown:
            return None
        limits = sink.column_limits()
        if limits is None or not _holds_flat_rows(limits) or sink.partition_columns:
            return None
        if not is_flat(fields := value_schema(source)):
            return None
        added = [StructField(CHECKPOINT_COLUMN, LongType(), nullable=False)]
        if lineage:
            added += [StructField(name, _LINEAGE_TYPES[of]) for name, of in LINEAGE.items()]
        columns = StructType([StructField(f.name, f.dataType) for f in fields] + added)
        needed = frozenset(name.lower() for name in (*never_null, *limits.needed))
        return cls(source, sink, columns, needed, lineage, record_bytes, as_staged)

    def stage(
        self, spark: SparkSession, entry: LedgerEntry, attempt: Attempt | None, share: Share
    ) -> tuple[StagedOutput, Counts] | None:
        """Stage ``entry.ranges``, see :meth:`eo_pipeline.batch.stage.Stager.stage`; None if Spark's
        plan must.
        """
        if _is_skipped(entry) or not has_source(spark, FORMAT):
            return None
        file_columns = self._file_columns(spark, in_files=attempt is not None)
        if file_columns is None:
            return None
        options = {
            **self._read_options(entry, share(spark, entry.ranges, entry.offsets)),
            **self._row_options(),
            **file_columns.options(),
            **_file_options(spark, entry, attempt),
        }
        if attempt and (session := session_on_server(spark)):
            attempt.runs_in(session)
        hide_secrets(spark)
        rows = spark.read.format(FORMAT).options(**options).load()
        results = interruptible(spark, rows.collect, attempt.name if attempt else None)
        if why := next((row["why"] for row in results if row["why"]), None):
            log.info("%s: version %d has %s", entry.pipeline, entry.version, why)
            _skip_next(entry)
            return None
        return self._collected(results, entry, attempt, file_columns)

    def _file_columns(self, spark: SparkSession, *, in_files: bool) -> FileColumns | None:
        """Return the columns of the staged files; None if the sink makes something else of the
        rows. The sink projects a frame without rows, for its errors.

        Raises:
            SchemaChangeError, RefusedError, ConfigError: see ``Sink.project``.
            TransformError: a column has a reserved name.
        """
        columns = self.columns
        names = [field.name for field in value_schema(self.source)]
        check_names([*names, KAFKA_COLUMN], lineage=self.lineage)
        empty = with_known_schema(spark.createDataFrame([], columns), columns)
        projected = self.sink.project(empty)
        form = self.sink.row_form(columns)
        if isinstance(form, JsonRows):
            return as_json(columns, form)
        if projected is not empty and projected.schema != columns:
            return None
        marked = self.as_staged(columns) if in_files and self.as_staged else columns
        return FileColumns(marked, tuple(range(len(marked))))

    def _read_options(self, entry: LedgerEntry, tasks: Tasks) -> dict[str, str]:
        tasks = tasks_for(self.source, tasks)
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

    def _row_options(self) -> dict[str, str]:
        fields, columns = value_schema(self.source), self.columns
        needed = [name for name in columns.names if name.lower() in self.needed]
        return {
            "eo.read": native_parameters(fields, read_as(fields)),
            "eo.rows": columns.json(),
            "eo.skips_tombstones": str(self.source.tombstones == "skip").lower(),
            "eo.needed": indexes(columns, needed),
            "eo.hashed": indexes(columns, sorted(self._hashed())),
        }

    def _hashed(self) -> dict[str, Any]:
        """Return the columns of the checksum; see :mod:`eo_pipeline.batch.checksum`."""
        if not self.sink.keeps_every_row:
            return {}
        shape = StructType([field for field in self.columns if field.name != CHECKPOINT_COLUMN])
        return checksum.hashed_columns(shape, self.sink.gives_back)

    def _collected(
        self,
        results: Sequence[Row],
        entry: LedgerEntry,
        attempt: Attempt | None,
        file_columns: FileColumns,
    ) -> tuple[StagedOutput, Counts]:
        schema = to_arrow_schema(file_columns.columns)
        if attempt is None:
            rows = _in_memory(results, schema)
        else:
            rows = _in_files(results, schema, attempt)
        sums = {name: sum(row[name] for row in results) for name in _SUMMED}
        refuse_other_rows(sums["rows"], rows, entry.checkpoint)
        hashed = self._hashed()
        counts = Counts(
            records=sums["records"],
            bytes=sums["bytes"],
            key_bytes=sums["key_bytes"],
            tombstones=sums["skipped"],
            rows=rows.rows,
            rows_total=entry.counts.rows_total + rows.rows,
            unknown=0,
            checksum=checksum.checksum(hashed, _checksum_sums(results)) if hashed else None,
        )
        return StagedOutput(rows=rows), counts


def _holds_flat_rows(limits: ColumnLimits) -> bool:
    """Return whether a store with these ``limits`` holds all rows that the tasks write: numbers are
    finite, texts UTF-8 without U+0000.
    """
    return limits.years[0] <= _YEARS[0] and limits.years[1] >= _YEARS[1]


def indexes(columns: StructType, names: Collection[str]) -> str:
    """Return the indexes of the columns ``names``."""
    return ",".join(str(columns.names.index(name)) for name in names)


def as_json(columns: StructType, form: JsonRows) -> FileColumns:
    """Return the file's columns of rows as one JSON object, with the columns staged beside it."""
    options = {"eo.document": indexes(columns, form.fields)}
    options |= {f"eo.json.{name}": value for name, value in JSON_OPTIONS.items()}
    written, of = [StructField(form.column, StringType())], [_WHOLE]
    for name, column in form.beside.items():
        index = columns.names.index(column)
        if name == form.as_bytes:
            options["eo.text"] = str(index)
            written.append(StructField(name, BinaryType()))
            of.append(_TEXT)
        else:
            written.append(StructField(name, columns[index].dataType, columns[index].nullable))
            of.append(index)
    return FileColumns(StructType(written), tuple(of), extra_options=options)


def _file_options(
    spark: SparkSession, entry: LedgerEntry, attempt: Attempt | None
) -> dict[str, str]:
    options, parquet = {"eo.checkpoint": str(entry.checkpoint)}, {**parquet_options(spark)}
    if attempt is not None:
        folder = attempt.rows_folder()
        options["eo.folder"] = path_to_write(folder)
        parquet |= options_of(folder)
    return options | {f"eo.hadoop.{name}": value for name, value in parquet.items()}


def _in_files(results: Sequence[Row], schema: pa.Schema, attempt: Attempt) -> StagedTable:
    files = {row["file"] for row in results if row["file"]}
    return attempt.collect(attempt.rows_folder(), lambda: schema, files)


def _in_memory(results: Sequence[Row], schema: pa.Schema) -> StagedTable:
    """Read the files that the rows hold."""
    # a dataset, which read_table makes, would load pandas: a fifth of a second in a new process
    files = [pq.ParquetFile(pa.BufferReader(row["held"])).read() for row in results if row["held"]]
    tables = [table.cast(schema) for table in files]
    return StagedTable.in_memory(pa.concat_tables(tables) if tables else schema.empty_table())


def _is_skipped(entry: LedgerEntry) -> bool:
    left = _skipped.pop(entry.ledger_id, 0)
    if left > 1:
        _skipped[entry.ledger_id] = left - 1
    return left > 0


def _skip_next(entry: LedgerEntry) -> None:
    while len(_skipped) >= _LEDGERS_MAX:
        _skipped.pop(next(iter(_skipped)), None)
    _skipped[entry.ledger_id] = _SKIPPED


def _checksum_sums(results: Sequence[Row]) -> checksum.Sums:
    total = checksum.NO_ROWS
    for row in results:
        part: Mapping[str, Any] = row.asDict()
        total = total.plus(checksum.summed(part))
    return total
