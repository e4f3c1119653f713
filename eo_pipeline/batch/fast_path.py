"""Fast path: flat JSON records, staged by the tasks that read them, without Spark's plan.

One data source of this package (``StagedRanges.java``) is the whole Spark job. Its tasks read Kafka
by Spark's own connector, decode, hash and write one Parquet file each, in one pass over the bytes,
and return one row of counts. It takes batches that no transform changes.

The tasks do not ask whether a row fits into a store: at the first one that not every store takes
they stop, and :mod:`eo_pipeline.batch.stage` processes the whole batch by Spark's plan. At the
first record that is not ordinary they stop, too, and begin again with what judges it
(:mod:`eo_pipeline.batch.native_decode`); the next batches of the ledger have it from the start.

:meth:`FastPath.of` is the only entrance: it knows of which pipelines rows can be staged so.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql import Row, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

from eo_pipeline.batch import checksum
from eo_pipeline.batch.counting import counts, refuse_other_rows
from eo_pipeline.batch.decode import KAFKA_COLUMN, LINEAGE
from eo_pipeline.batch.decode_json import is_flat
from eo_pipeline.batch.native_decode import (
    NativeDecoder,
    Ordinary,
    Recently,
    judged,
    needs_judge,
    read_counts,
    results_of,
    row_options,
    staged_rows,
)
from eo_pipeline.batch.output import check_names
from eo_pipeline.batch.validation import refuse_bad
from eo_pipeline.kafka.planner import Tasks
from eo_pipeline.kafka.source import KafkaSource
from eo_pipeline.ledger.entry import CHECKPOINT_COLUMN, Counts, LedgerEntry
from eo_pipeline.ledger.offsets import OffsetRange, TopicPartition
from eo_pipeline.sinks.columns import JSON_OPTIONS, ColumnLimits, JsonRows
from eo_pipeline.sinks.config import Sink
from eo_pipeline.spark import (
    with_known_schema,
)
from eo_pipeline.spark.native_jar import has_source
from eo_pipeline.staging.attempt import Attempt
from eo_pipeline.staging.rows import StagedOutput

log = logging.getLogger(__name__)

FORMAT = "eo.pipeline.StagedRanges"

#: Years of the times that the tasks write, see ``RangeStager.java``.
_YEARS = (1600, 9999)

_LINEAGE_TYPES = {"topic": StringType(), "partition": IntegerType(), "offset": LongType()}

#: Instead of a column's index: a value made of the whole row, and the bytes of one column's text;
#: equal to those in ``Staging.java``.
_WHOLE, _TEXT = -1, -2


#: Tables whose rows need Spark's plan.
_planned = Recently()

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


class Prepared(NamedTuple):
    """Tasks that stage the rows of one table: options of decoding and staging, columns of their
    files, what decodes.
    """

    options: Mapping[str, str]
    file_columns: FileColumns
    decoder: NativeDecoder


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
    #: SQL condition on which a record is the table's
    where: str | None

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
        where: str | None = None,
    ) -> FastPath | None:
        """Return the fast path of a pipeline without a transform; None if its rows do not equal
        its records, or the sink's limits are unknown or narrower than those of the tasks.
        """
        ordinary = Ordinary.of(source)
        if ordinary is None or not is_flat(ordinary.columns):
            return None
        limits = sink.column_limits()
        if limits is None or not _holds_flat_rows(limits) or sink.partition_columns:
            return None
        added = [StructField(CHECKPOINT_COLUMN, LongType(), nullable=False)]
        if lineage:
            added += [StructField(name, _LINEAGE_TYPES[of]) for name, of in LINEAGE.items()]
        columns = StructType([*ordinary.columns, *added])
        needed = frozenset(name.lower() for name in (*never_null, *limits.needed))
        return cls(source, sink, columns, needed, lineage, record_bytes, as_staged, where)

    def stage(
        self,
        spark: SparkSession,
        entry: LedgerEntry,
        attempt: Attempt | None,
        share: Share,
        *,
        had_bad_records: bool = False,
    ) -> tuple[StagedOutput, Counts] | None:
        """Stage ``entry.ranges``, see :meth:`eo_pipeline.batch.stage.Stager.stage`; None if Spark's
        plan must. ``had_bad_records``: the checkpoint before had some.

        Raises:
            BadRecordError: by the source's policy.
        """
        if not has_source(spark, FORMAT):
            return None
        prepared = self.prepared(spark, entry, attempt, had_bad_records=had_bad_records)
        while prepared is not None:
            tasks, decoder = share(spark, entry.ranges, entry.offsets), prepared.decoder
            options = decoder.options_of_read(spark, entry, tasks, self.record_bytes)
            results = results_of(spark, FORMAT, {**options, **prepared.options}, attempt)
            staged = self.collected(results, prepared, entry, attempt)
            if staged is not None or attempt is None or decoder.judges:
                return staged
            prepared = self.prepared(spark, entry, attempt)  # perhaps with a judge
        return None

    def prepared(
        self,
        spark: SparkSession,
        entry: LedgerEntry,
        attempt: Attempt | None,
        *,
        had_bad_records: bool = False,
    ) -> Prepared | None:
        """Return what tasks that stage ``entry.ranges`` need besides the ranges; None if Spark's
        plan must stage them. Arguments and errors: see :meth:`stage`.
        """
        if _planned.has(entry, self.sink):
            return None
        file_columns = self._file_columns(spark, in_files=attempt is not None)
        if file_columns is None:
            return None
        judges = needs_judge(entry, self.source, self.sink, attempt, had_bad=had_bad_records)
        if judges and attempt is None:
            return None
        decoder = NativeDecoder.of(spark, self.source, self.sink, judges=judges, where=self.where)
        assert decoder is not None, "flat JSON is decoded by tasks"
        options = {
            **decoder.decode_options(spark, entry, attempt),
            **self._row_options(),
            **file_columns.options(),
            **row_options(spark, attempt),
        }
        return Prepared(options, file_columns, decoder)

    def collected(
        self,
        results: Sequence[Row],
        prepared: Prepared,
        entry: LedgerEntry,
        attempt: Attempt | None,
    ) -> tuple[StagedOutput, Counts] | None:
        """Return what the tasks staged, of their ``results``; None if they did not. What they need
        is remembered then.

        Raises:
            BadRecordError: by the source's policy.
        """
        parts = [json.loads(row["part"]) for row in results]
        if why := next((row["why"] for row in results if row["why"]), None):
            log.info("%s: version %d has %s", entry.pipeline, entry.version, why)
            needs_judge = any(part["why"] for part in parts) and attempt is not None
            (judged if needs_judge else _planned).note(entry, self.sink)
            return None
        return self._collected(
            results, parts, entry, attempt, prepared.file_columns, prepared.decoder
        )

    def _file_columns(self, spark: SparkSession, *, in_files: bool) -> FileColumns | None:
        """Return the columns of the staged files; None if the sink makes something else of the
        rows. The sink projects a frame without rows, for its errors.

        Raises:
            SchemaChangeError, RefusedError, ConfigError: see ``Sink.project``.
            TransformError: a column has a reserved name.
        """
        columns = self.columns
        ordinary = Ordinary.of(self.source)
        assert ordinary is not None, "as in `of`"
        check_names([*ordinary.columns.names, KAFKA_COLUMN], lineage=self.lineage)
        empty = with_known_schema(spark.createDataFrame([], columns), columns)
        projected = self.sink.project(empty)
        form = self.sink.row_form(columns)
        if isinstance(form, JsonRows):
            return as_json(columns, form)
        if projected is not empty and projected.schema != columns:
            return None
        marked = self.as_staged(columns) if in_files and self.as_staged else columns
        return FileColumns(marked, tuple(range(len(marked))))

    def _row_options(self) -> dict[str, str]:
        columns = self.columns
        needed = [name for name in columns.names if name.lower() in self.needed]
        return {
            "eo.rows": columns.json(),
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
        parts: Sequence[Mapping[str, Any]],
        entry: LedgerEntry,
        attempt: Attempt | None,
        file_columns: FileColumns,
        decoder: NativeDecoder,
    ) -> tuple[StagedOutput, Counts]:
        seen = read_counts(parts)
        refuse_bad(seen, self.source)
        rows = staged_rows(results, to_arrow_schema(file_columns.columns), attempt)
        refuse_other_rows(sum(part["rows"] for part in parts), rows, entry.checkpoint)
        dead, dead_checksum = decoder.dead_letters(parts, seen, attempt)
        hashed = self._hashed()
        total = checksum.total(map(checksum.summed, parts))
        output = StagedOutput(rows=rows, dead_letters=dead)
        hashes = checksum.checksum(hashed, total) if hashed else None
        return output, counts(seen, output, entry, hashes, dead_checksum)


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
